# SPDX-License-Identifier: Apache-2.0
"""How the demo shows what it does, and remembers what did not hold."""

import subprocess
import textwrap
from collections import Counter

import packattn

failures = []


def title(text):
    print(f"\n\n{text}\n{'─' * len(text)}")


def say(text=""):
    print(textwrap.indent(str(text), "  "))


def expect(holds, text):
    """One line about something that has to be true; a false one makes the demo fail."""
    print(f"  {'✓' if holds else '✗ NOT SO:'} {text}")
    if not holds:
        failures.append(text)


def bar(value, largest, width=40):
    """A bar of eighth blocks; what is not zero shows at least a sliver."""
    eighths = max(round(8 * width * value / largest), 1 if value else 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def run(code, scope):
    """Show lines of Python and execute exactly what was shown."""
    code = textwrap.dedent(code).strip()
    for line in code.splitlines():
        say(f"{'...' if line[0].isspace() else '>>>'} {line}")
    exec(code, scope)


def refused(code, scope, *, codes):
    """Run a call that packattn must refuse with these codes, and show what it says."""
    try:
        run(code, scope)
    except packattn.Error as error:
        say(textwrap.indent(str(error), "│ ", lambda line: True))
        found = [fault.code for fault in error.faults]
        told = ", ".join(f"{n} x {code}" if n > 1 else code for code, n in Counter(found).items())
        expect(found == codes, f"refused before anything ran: {told}")
    else:
        expect(False, f"the call is refused with {', '.join(codes)}")


def accepted(code, scope):
    """Run a call that packattn must accept; tell whether it did."""
    try:
        run(code, scope)
    except packattn.Error as error:
        say(error)
        expect(False, "the call is accepted")
        return False
    return True


def call(command, *arguments, folder, lines=None):
    """Run a program in a folder and show what it prints, or the first lines of it."""
    done = subprocess.run(
        [command, *arguments], cwd=folder, capture_output=True, encoding="utf-8", check=False
    )
    shown = "\n".join((done.stdout + done.stderr).rstrip().splitlines()[:lines])
    say(textwrap.indent(shown, "│ ", lambda line: True))
    return done
