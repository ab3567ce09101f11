"""Fuzz every reader for some time each: python tests/fuzz/fuzz.py [READER ...] --seconds 3600.

Each reader runs in a process of its own, so that a crash is a finding of that reader alone. What a
reader did not refuse properly is written with its damaged file to --out. With --atheris the same
property is driven by libFuzzer's coverage of `trivium` (pip install atheris).
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")

_DRAWN_BYTES = 2048
"""Random bytes from which one damage is drawn."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("readers", nargs="*", help="names of readers; default: all")
    parser.add_argument("--seconds", type=float, default=3600, help="for each reader")
    parser.add_argument("--jobs", type=int, default=1, help="readers at the same time")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--atheris", action="store_true", help="choose by coverage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return fuzz_one(options)
    from checking import READERS

    names = options.readers or list(READERS)
    unknown = sorted({*names} - {*READERS})
    if unknown:
        parser.error(f"no reader {', '.join(unknown)}; there are {', '.join(READERS)}")
    return fuzz_all(names, options)


def fuzz_all(names: list[str], options: argparse.Namespace) -> int:
    """A process for each reader; how many of them found something."""
    waiting, running, failed = list(names), {}, 0
    options.out.mkdir(parents=True, exist_ok=True)
    while waiting or running:
        while waiting and len(running) < options.jobs:
            name = waiting.pop(0)
            command = [sys.executable, __file__, "--one", name, "--out", str(options.out)]
            command += ["--seconds", str(options.seconds), "--seed", str(options.seed)]
            command += ["--atheris"] * options.atheris
            with (options.out / f"{name}.log").open("w") as log:
                running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        for name, process in list(running.items()):
            if _stuck(options.out / f"{name}.last"):
                process.kill()
                process.wait()
            if process.poll() is not None:
                del running[name]
                failed += process.returncode != 0
                log = (options.out / f"{name}.log").read_text(errors="replace").strip()
                last = (log.splitlines() or [""])[-1]
                print(f"{name:32} exit {process.returncode}  {last}", flush=True)
        time.sleep(0.5)
    return int(failed > 0)


def fuzz_one(options: argparse.Namespace) -> int:
    """One reader in this process; prints how long it ran and what it found."""
    if options.atheris:
        import atheris

        with atheris.instrument_imports(include=["trivium"]):
            import checking
    else:
        import checking
    from damage import Damage, damages
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    options.out.mkdir(parents=True, exist_ok=True)
    (name,), counts, found = options.readers, {"reads": 0, "errors": 0}, {}
    seen, start = set[int](), time.monotonic()

    def spent() -> float:
        return time.monotonic() - start

    with checking.fuzzed(name) as reader:

        def check(damage: Damage, summed: bool) -> None:
            if hash((damage, summed)) in seen:
                return
            seen.add(hash((damage, summed)))
            counts["reads"] += 1
            _note(options.out / f"{name}.last", damage)
            try:
                counts["errors"] += reader.check(damage, summed=summed) is not None
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                key = _place(error)
                if key not in found:
                    found[key] = f"{type(error).__name__}: {str(error)[:200]}"
                    _note(options.out / f"{name}.{len(found)}", damage)
                    print(f"--- {len(found)}: {damage.name}, summed {summed}, at {key}")
                    traceback.print_exc(limit=-6)
                    print(flush=True)

        test = given(damage=damages(reader.files), summed=st.booleans())(check)
        test = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))(test)
        # Hypothesis's own search is for a failure in a hundred tries: half of it repeats itself.
        fuzz_one = test.hypothesis.fuzz_one_input

        def finish() -> int:
            (options.out / f"{name}.last").unlink(missing_ok=True)
            share = counts["errors"] / max(1, counts["reads"])
            print(
                f"{spent():.0f} s ({time.process_time():.0f} of work), {counts['reads']:,} reads, "
                f"{share:.0%} refused, "
                f"{len(found)} findings {list(found)}",
                flush=True,
            )
            return int(bool(found))

        if options.atheris:

            def run(data: bytes) -> None:
                if spent() >= options.seconds:
                    os._exit(finish())  # libFuzzer never returns
                fuzz_one(data)

            limits = ["-max_len=8192", "-len_control=0", "-rss_limit_mb=0", "-timeout=300"]
            atheris.Setup([__file__, f"-seed={options.seed + 1}", *limits], run)
            atheris.Fuzz()
        source = random.Random(options.seed)
        while spent() < options.seconds:
            fuzz_one(source.randbytes(_DRAWN_BYTES))
        return finish()


def _stuck(last: Path) -> bool:
    """Whether a reader has read one file for minutes, in code that no signal interrupts."""
    return last.exists() and time.time() - last.stat().st_mtime > 180


def _note(stem: Path, damage: object) -> None:
    """Keep a damaged file, with its name in the first line."""
    stem.write_bytes(damage.name.encode() + b"\n" + (damage.content or b""))


def _place(error: BaseException) -> str:
    """Where in the package an error came from, which tells findings apart."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/src/trivium/" in frame.filename]
    last = (own or frames)[-1]
    return f"{Path(last.filename).name}:{last.lineno} {type(error).__name__}"


if __name__ == "__main__":
    sys.exit(main())
