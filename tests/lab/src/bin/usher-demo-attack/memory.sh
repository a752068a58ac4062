python3 - $PID <<'PYTHON'
import sys
number = sys.argv[1]
try:
    with open(f"/proc/{number}/maps") as maps, open(f"/proc/{number}/mem", "rb", 0) as memory:
        for line in maps:
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            if " rw" not in line:
                continue
            memory.seek(begin)
            for text in memory.read(end - begin).split(b"\n"):
                if text.startswith(b"Subject: "):
                    print(text.decode(errors="replace"))
except OSError as error:
    print(error)
PYTHON
