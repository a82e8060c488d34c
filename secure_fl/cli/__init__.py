"""The command line: `secure-fl`."""

from __future__ import annotations

import errno
import sys
from typing import Annotated, NoReturn

import typer

import secure_fl
from secure_fl.cli import audit, bench, deployed, doctor, joining, pki, processes, run, sample, study, task
from secure_fl.errors import SecureFLError, StorageError

app = typer.Typer(
    name="secure-fl",
    help="Federated learning for sites that keep their data.\n\n"
    "Start with: [bold]secure-fl run[/bold] — a whole federation on this machine.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # a traceback with local variables could show a key
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
for command in (deployed.submit, deployed.status, deployed.stop, deployed.export, deployed.report, deployed.history):
    study.app.command()(command)
app.add_typer(study.app)
app.add_typer(processes.coordinator)
app.add_typer(processes.node)
app.add_typer(joining.operator)
app.add_typer(pki.app)
app.add_typer(task.app)
app.add_typer(audit.app)
app.add_typer(bench.app)
app.command("doctor")(doctor.doctor)
app.command("sample")(sample.sample)

_UNEXPECTED = 70


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,  # noqa: ARG001
) -> None:
    """Options that go before the command."""
    # A task named as module:attribute may lie in the folder one works in. Last, so that no file there hides a module.
    if "" not in sys.path:
        sys.path.append("")
    if version:
        typer.echo(f"secure-fl {secure_fl.__version__}")
        raise typer.Exit


def main() -> None:
    """The console script. Errors of ours are one line, a hint and a distinct exit code."""
    try:
        app()
    except SecureFLError as error:
        _fail(error)
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as left:
        # Typer makes a silent exit code of Ctrl-C. A command that has said what to do now is left as it is.
        if isinstance(left.__context__, typer.Exit) and isinstance(left.__context__.__cause__, KeyboardInterrupt):
            _interrupted()
        raise
    except OSError as error:
        # Space and permissions are what the usual advice is about; anything else is the path itself.
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror or type(error).__name__}"
        _fail(StorageError(text, advice=None if full else "check the path; --debug before the command shows more"))
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        sys.stderr.write(f"secure-fl: unexpected {type(error).__name__}; --debug before the command shows where\n")
        sys.exit(_UNEXPECTED)


def _interrupted() -> NoReturn:
    sys.stderr.write("secure-fl: interrupted\n")
    sys.exit(130)


def _fail(error: SecureFLError) -> None:
    if "--debug" in sys.argv:
        raise error
    sys.stderr.write(f"secure-fl: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"  → {error.hint}\n")
    sys.exit(error.exit_code)
