"""`transformer-core doctor`: check this machine and repository, with a remedy for each problem."""

import argparse
import json
from dataclasses import asdict

from transformer_core.cli.arguments import Commands, add_command


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "doctor", "check this machine and repository", "transformer-core doctor")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each check; return the exit code of the first problem, or 0 (warnings are not problems)."""
    from transformer_core.doctor import examine

    findings = examine()
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            remedy = f" {finding.remedy}" if finding.remedy else ""
            print(f"{finding.status:<8}{finding.name:<11}{finding.detail}{'.' if remedy else ''}{remedy}")
    return next((finding.exit_code for finding in findings if finding.status == "problem"), 0)
