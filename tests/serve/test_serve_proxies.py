"""The configurations of the page on deployment, run with nginx and Caddy."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
import yaml
from page_examples import DOCS, run_examples
from serving import wait_until

pytest.importorskip("gradio")

NAME = "lm.example.org"
KEY = "k"
BROWSER = shutil.which("chromium")
PROGRAMS = ("nginx", "caddy", "openssl")
PATHS = {"nginx-path.conf": "/lm", "Caddyfile-path": "/lm"}
NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{page}
}}
"""
CADDY = """
{{
    admin off
    auto_https disable_redirects
    skip_install_trust
    default_bind 127.0.0.1
    storage file_system {folder}
}}
{page}
"""


def blocks() -> list[tuple[str, str, str]]:
    """File, configuration and command of every proxy on the page."""
    page = (DOCS / "deployment.md").read_text(encoding="utf-8")
    found, command = [], ""
    for block in run_examples.BLOCK.finditer(page):
        if block["language"] == "sh":
            command = block["body"].strip()
        elif block["language"] == "nginx":
            found.append((block["title"], block["body"], command))
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def process(command, answers, folder, **variables):
    """A program, from when a function of its port is true."""
    with (folder / "log").open("w+") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | variables)
        try:
            wait_until(lambda: child.poll() is not None or answers(), 120)
            assert child.poll() is None, (folder / "log").read_text()
            yield
        finally:
            child.terminate()
            child.wait(30)


def accepts(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def has_certificate(port, root):
    """Whether a server has a certificate for localhost that the root certificate has signed."""
    context = ssl.create_default_context(cafile=str(root))
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as plain:
        context.wrap_socket(plain, server_hostname="localhost").close()
        return True
    return False


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of the name that signs itself, and its key."""
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing:
        assert not os.environ.get("CI"), f"CI needs {missing}"
        pytest.skip(f"there is no {' and no '.join(missing)}")
    folder = tmp_path_factory.mktemp("certificate")
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={NAME} -keyout key.pem"
    command += f" -out cert.pem -addext subjectAltName=DNS:{NAME}"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def start_proxy(file, page, port, server_port, certificate, folder):
    """The command of a proxy with the configuration of the page at other ports."""
    cert, key = certificate
    page = page.replace("127.0.0.1:8000", f"127.0.0.1:{server_port}")
    path = folder / file
    if file.startswith("nginx"):
        page = re.sub(r"listen \d+", f"listen 127.0.0.1:{port}", page)
        page = page.replace(f"/etc/ssl/{NAME}.pem", str(cert))
        page = page.replace(f"/etc/ssl/{NAME}.key", str(key))
        path.write_text(NGINX.format(folder=folder, page=page))
        return ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(path)]
    page = page.replace(f"{NAME} {{", f"{NAME}:{port} {{\n    tls {cert} {key}")
    path.write_text(CADDY.format(folder=folder, page=page))
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(path)]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "page", "command"), blocks(), ids=[each[0] for each in blocks()])
def test_the_page_works_behind_a_proxy(file, page, command, paths, certificate, tmp_path):
    port, server_port = free_port(), free_port()
    path = PATHS.get(file, "")
    arguments = shlex.split(re.sub(r"^\w+=\S+ ", "", command))[1:]
    origin = arguments[arguments.index("--allow-origin") + 1]
    at = arguments.index("runs/*")
    arguments[at : at + 1] = [paths["plain"], "--port", str(server_port)]
    server = [sys.executable, "-m", "trivium", *arguments]
    proxy = start_proxy(file, page, port, server_port, certificate, tmp_path)
    (tmp_path / "server").mkdir()
    with (
        process(server, lambda: accepts(server_port), tmp_path / "server", TRIVIUM_API_KEY=KEY),
        process(proxy, lambda: accepts(port), tmp_path, HOME=str(tmp_path)),
        httpx.Client(
            base_url=f"https://127.0.0.1:{port}{path}/",
            verify=ssl.create_default_context(cafile=str(certificate[0])),
            # The Host of a browser has the port of its address.
            headers={"Host": origin.removeprefix("https://")},
            auth=("", KEY),
            timeout=60,
        ) as browser,
    ):

        def send(method, address, headers=(), **options):
            extensions = {"sni_hostname": NAME}
            return browser.request(
                method, address, headers=dict(headers), extensions=extensions, **options
            )

        shown = send("GET", "./")
        assert shown.status_code == 200
        scripts = re.findall(r'(?:src|href)="(\.?/[^"]+\.(?:js|css))"', shown.text)
        assert scripts
        own = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
        older = {"Origin": origin}  # a browser without Fetch Metadata
        for script in scripts:
            assert urljoin(f"{path}/", script).startswith(f"{path}/")
            assert send("GET", script, own).status_code == 200, script
        for headers in (own, older):
            assert send("GET", "gradio_api/info", headers).status_code == 200
            join = {"fn_index": 0, "data": [], "session_hash": "s"}
            answer = send("POST", "gradio_api/queue/join", headers, json=join)
            assert answer.status_code == 200, answer.text
            body = {"model": "plain", "prompt": "a", "max_tokens": 2}
            answer = send("POST", "v1/completions", headers, json=body)
            assert answer.status_code == 200, answer.text
        assert "openapi.json" in send("GET", "docs").text
        assert send("GET", "openapi.json").json()["servers"] == [{"url": path or "/"}]
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": f"{origin}.evil.example"},
            {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        ):
            for address in ("gradio_api/queue/join", "v1/completions"):
                assert send("POST", address, headers, json=body).status_code == 403
        if BROWSER is not None:
            generate_in_browser(origin, path, port)


@pytest.mark.slow
def test_the_proxy_of_compose_sends_https_to_the_server(paths, certificate, tmp_path):
    """The commands of compose.yaml at other ports. Caddy also redirects from port 80."""
    try:
        socket.create_server(("127.0.0.1", 80)).close()
    except OSError as error:
        pytest.skip(f"port 80: {error}")
    compose = (DOCS.parent / "compose.yaml").read_text(encoding="utf-8")
    compose = compose.replace("${TRIVIUM_HOST:-localhost}", "localhost")
    services = yaml.safe_load(compose)["services"]
    port, server_port = free_port(), free_port()
    server = [sys.executable, "-m", "trivium", *shlex.split(services["trivium"]["command"])]
    server[server.index("story") : server.index("--host")] = [paths["plain"], "--no-playground"]
    server[server.index("--port") + 1] = str(server_port)
    server[server.index("--allow-origin") + 1] += f":{port}"
    caddy, *proxy = shlex.split(services["proxy"]["command"])
    proxy[proxy.index("--from") + 1] += f":{port}"
    proxy[proxy.index("--to") + 1] = f"127.0.0.1:{server_port}"
    # Without the tools in PATH, Caddy cannot add its certificate to those of the system.
    proxy = [str(shutil.which(caddy)), *proxy]
    root = tmp_path / "caddy" / "pki" / "authorities" / "local" / "root.crt"
    (tmp_path / "server").mkdir()
    with (
        process(server, lambda: accepts(server_port), tmp_path / "server", TRIVIUM_API_KEY=KEY),
        process(
            proxy,
            lambda: root.exists() and has_certificate(port, root),
            tmp_path,
            PATH="",
            HOME=str(tmp_path),
            XDG_DATA_HOME=str(tmp_path),
        ),
        httpx.Client(
            base_url=f"https://localhost:{port}",
            verify=ssl.create_default_context(cafile=str(root)),
            headers={"Origin": f"https://localhost:{port}"},
            timeout=60,
        ) as client,
    ):
        body = {"model": "plain", "prompt": "a", "max_tokens": 2}
        assert client.post("/v1/completions", json=body).status_code == 401
        answer = client.post("/v1/completions", json=body, auth=("", KEY))
        assert answer.status_code == 200, answer.text
        with client.stream(
            "POST", "/v1/completions", json={**body, "stream": True}, auth=("", KEY)
        ) as stream:
            assert [line for line in stream.iter_lines() if line][-1] == "data: [DONE]"


def generate_in_browser(origin, path, port):
    """Open the page, whose first tab generates a text at once, and wait for its table."""
    sync_api = pytest.importorskip("playwright.sync_api")
    address = urlsplit(origin)
    rule = f"MAP {NAME}:{address.port or 443} 127.0.0.1:{port}"
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", f"--host-resolver-rules={rule}"]
        )
        page = browser.new_context(
            ignore_https_errors=True, http_credentials={"username": "", "password": KEY}
        ).new_page()
        page.goto(f"{origin}{path}/")
        page.locator("#completions-table").get_by_text("%").locator("visible=true").first.wait_for()
        browser.close()
