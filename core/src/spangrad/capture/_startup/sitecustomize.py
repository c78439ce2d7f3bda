"""Imported by Python as it starts, in processes that the runner started for a rollout: lets the program join that rollout.

The program itself must not notice: whatever `sitecustomize` it would have had runs first, its path is as it would have been,
and until it imports an agent framework, a client library or spangrad, nothing more than watching for that is done.

Any Python may find this file on its path, one without spangrad too, and older ones than spangrad supports; hence the plain syntax.
"""

# ruff: noqa: PTH100, PTH120 - pathlib takes longer to import than all of this to run
import os
import sys


def _run_own() -> None:
    """Runs the `sitecustomize` that this one stands before, if there is one; what it raises is Python's to report."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401, PLC0415 - with the path changed it is another one
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
    finally:
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


def _watch() -> None:
    """Joins the rollout when the program first imports something that can matter to it; at once, if nobody says what can."""
    pairs, told, prefix = os.environ.get("SPANGRAD_INTEGRATIONS", "").partition("@")
    if not told or prefix != sys.prefix:
        _join()
        return
    import wrapt  # noqa: PLC0415 - only where there is a spangrad, which brings it

    frameworks = {pair.partition("=")[2] for pair in pairs.split(",") if pair}
    for name in {"spangrad.capture"} | frameworks:
        wrapt.register_post_import_hook(_join_from_import, name)


def _join() -> None:
    from spangrad.capture._process import join_from_environment  # noqa: PLC0415 - only when it is time to

    join_from_environment()


def _join_from_import(_: object) -> None:
    try:
        _join()
    except Exception as error:  # whatever it is, the program goes on without us
        _complain(error)
        if _strict():
            raise


_complained: "list[bool]" = []


def _complain(error: Exception) -> None:
    """One line, however many imports lead to the same trouble."""
    if sys.stderr is not None and not _complained:
        _complained.append(True)
        sys.stderr.write("spangrad: this process is not attached: %s\n" % " ".join(str(error).split()))  # noqa: UP031 - as above
        sys.stderr.flush()


def _strict() -> bool:
    return os.environ.get("SPANGRAD_STRICT", "").strip().lower() in ("1", "true", "yes", "on")


def _start() -> None:
    from importlib.util import find_spec  # noqa: PLC0415 - only in a rollout

    if find_spec("spangrad") is None:
        return  # another Python environment; the gateway records its calls all the same
    try:
        _watch()
    except Exception as error:  # noqa: BLE001 - as above
        _complain(error)
        if _strict():
            os._exit(1)  # an exception would be reported by Python and then ignored


try:
    _run_own()
finally:
    if os.environ.get("SPANGRAD_ROLLOUT"):
        _start()
