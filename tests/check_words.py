#!/usr/bin/env python3
"""The project speaks of itself alone: no absolute paths of a developer's machine, no unfinished marks.

Looks at every text file that git tracks or would track. Exit status 1 and one line a finding.
"""

import re
import subprocess
import sys
from pathlib import Path

FORBIDDEN = {
    r"(?<![\w.-])/(work|root|home/\w+)/": "a path of somebody's machine",
    r"\.dev/": "a scratch folder",
    r"\b(FIXME|XXX)\b": "an unfinished mark",
    r"\bTODO\b": "an unfinished mark (open an issue, or do it)",
    r"(?i)\blorem ipsum\b": "a placeholder",
    r"(?i)\bas an? (ai|(large )?language model)\b": "words about the author",
    r"<<<<<<<|>>>>>>>": "an unresolved merge",
}
SELF = "tests/check_words.py"
SKIP = (".gitignore", "LICENSE")


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "-co", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    files = bad = 0
    for name in listed:
        path = root / name
        if name == SELF or name in SKIP or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a picture, an array
        files += 1
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, what in FORBIDDEN.items():
                if re.search(pattern, line):
                    print(f"{name}:{number}: {what}: {line.strip()[:100]}")
                    bad += 1
    print(f"words: {files} files, {bad} findings")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
