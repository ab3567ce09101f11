"""The part of the hub's HTTP API that uploads and downloads of models use, on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from huggingface_hub import constants, hf_api

WRITER, READER = "hf_writes", "hf_reads"
COMMIT = "c" * 40


@dataclass
class FakeHub:
    """What the hub was sent: repositories, their files, and the requests in order."""

    endpoint: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def handle_any(self) -> None:
        body, path = self.read_body(), unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        parts = path.strip("/").split("/")
        if self.command == "PUT":  # an object, by the address that the LFS batch gave
            self.hub.objects[parts[-1]] = body
            return self.send(200)
        if self.command in ("GET", "HEAD"):
            return self.send_file_or_info(parts)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in (WRITER, READER):
            return self.send(401, {"error": "Invalid username or password."})
        if token == READER and path != "/api/validate-yaml":
            return self.send(403, {"error": "You don't have the rights to do this."})
        if path == "/api/validate-yaml":
            return self.send(200, {"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path.endswith("/preupload/main"):
            return self.preupload(json.loads(body)["files"])
        if path.endswith(".git/info/lfs/objects/batch"):
            return self.batch(json.loads(body)["objects"])
        if path.endswith("/commit/main"):
            return self.commit("/".join(parts[2:4]), body)
        return self.send(404, {"error": "no such address"})

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def send(self, status: int, content: Any = None, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content or {}).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def create(self, wanted: dict[str, Any]) -> None:
        name = f"{wanted['organization']}/{wanted['name']}"
        address = {"url": f"{self.hub.endpoint}/{name}", "id": name}
        if name in self.hub.files:
            return self.send(409, address | {"error": "You already created this model repo"})
        self.hub.files[name] = {".gitattributes": b""}
        self.hub.private[name] = wanted.get("visibility") == "private" or wanted.get("private", 0)
        return self.send(200, address)

    def preupload(self, files: list[dict[str, Any]]) -> None:
        modes = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for one in files
        ]
        self.send(200, {"files": modes})

    def batch(self, objects: list[dict[str, Any]]) -> None:
        actions = [
            {**one, "actions": {"upload": {"href": f"{self.hub.endpoint}/lfs/{one['oid']}"}}}
            for one in objects
        ]
        self.send(200, {"transfer": "basic", "objects": actions})

    def commit(self, name: str, body: bytes) -> None:
        for line in body.splitlines():
            change = json.loads(line)
            value = change["value"]
            if change["key"] == "file":
                self.hub.files[name][value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "lfsFile":
                content = self.hub.objects[value["oid"]]
                assert hashlib.sha256(content).hexdigest() == value["oid"]
                self.hub.files[name][value["path"]] = content
        address = f"{self.hub.endpoint}/{name}/commit/{COMMIT}"
        self.send(200, {"commitUrl": address, "commitOid": COMMIT, "success": True})

    def send_file_or_info(self, parts: list[str]) -> None:
        if parts[:2] == ["api", "models"]:
            name = "/".join(parts[2:4])
            if name not in self.hub.files:
                return self.send(
                    404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound"
                )
            if parts[4:5] == ["tree"]:
                rows = [
                    {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
                    for path, content in self.hub.files[name].items()
                ]
                return self.send(200, rows)
            siblings = [{"rfilename": path} for path in self.hub.files[name]]
            return self.send(200, {"id": name, "sha": COMMIT, "siblings": siblings})
        name, path = "/".join(parts[:2]), "/".join(parts[4:])
        content = self.hub.files.get(name, {}).get(path)
        if content is None:
            return self.send(404, {"error": "not found"}, X_Error_Code="EntryNotFound")
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        return self.send(200, content, ETag=etag, X_Repo_Commit=COMMIT)


@contextmanager
def fake_hub(monkeypatch: Any, cache: Any, token: str | None = WRITER) -> Iterator[FakeHub]:
    """Context manager in which `huggingface_hub` uses a hub on this machine. Yields the hub.

    Files are uploaded by LFS instead of Xet, because the protocol of Xet is not public.
    """
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(hf_api.api, "endpoint", hub.endpoint)
    if token is None:
        monkeypatch.delenv("HF_TOKEN", raising=False)
    else:
        monkeypatch.setenv("HF_TOKEN", token)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
