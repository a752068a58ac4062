#!/usr/bin/env -S python3 -P
"""The calendar server of examples/calendar as a Python program, with the same protocol
(examples/calendar/PROTOCOL.md) and files, and fewer recurrence rules.

    calendar.py serve [PORT]   as the service's account: forks a process for each user
    calendar.py connection [DIRECTORY]
                               as the user: serves standard input, for a service with `program`

It needs python3's option -P, because a module of the standard library has this file's name.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import heapq
import json
import os
import pwd
import re
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import zoneinfo
from datetime import UTC, datetime, timedelta

import usher

REQUEST, ANSWER, TEXT, FILE = 512 << 10, 8 << 20, 256 << 10, 4 << 20  # bytes
CALENDARS, COMPONENTS, DATES, OCCURRENCES, STEPS = 64, 20_000, 2_000, 10_000, 500_000
CONNECTIONS, PROBLEMS, DEPTH = 64, 20, 4
SILENCE, IDLE, WAIT, LOOK, SETTLED = 600, 300, 300, 0.5, 1  # seconds
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
PROPERTY = re.compile(r'([A-Za-z0-9-]+)((?:;[A-Za-z0-9-]+=(?:"[^"]*"|[^";:])*)*):(.*)', re.DOTALL)
PARAMETER = re.compile(r';([A-Za-z0-9-]+)=((?:"[^"]*"|[^";:])*)')
DURATION = re.compile(
    r"\+?P(?=.)(?:(\d{1,5})W)?(?:(\d{1,5})D)?"
    r"(?:T(?=.)(?:(\d{1,7})H)?(?:(\d{1,7})M)?(?:(\d{1,9})S)?)?"
)
WEEKDAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]


class Refused(Exception):
    """A refused request: a code for programs, a text for people."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


# ---------------------------------------------------------------- iCalendar text


@dataclasses.dataclass
class Piece:
    """A direct part of a calendar: a component, or (kind "") other text."""

    kind: str
    raw: str
    properties: dict = dataclasses.field(default_factory=dict)

    def first(self, name):
        """The first property of that name, as (parameters, value)."""
        return self.properties.get(name, [None])[0]

    def text(self, name):
        """The value of that property, with its escapes resolved."""
        value = (self.first(name) or ({}, ""))[1]
        return re.sub(r"\\(.)", lambda m: "\n" if m[1] in "nN" else m[1], value, flags=re.DOTALL)


def split(text):
    """Splits a VCALENDAR into pieces that together are the text."""
    if len(text.encode()) > FILE:
        raise Refused("text", f"longer than {FILE} bytes")
    pieces, inside, begun = [Piece("", "")], [], False
    for raw in re.findall(r"[^\n]*\n(?:[ \t][^\n]*\n?)*|[^\n]+$", text):
        line = re.sub(r"\r?\n[ \t]", "", raw).rstrip("\r\n")
        if not line.strip():
            pieces[-1].raw += raw
            continue
        match = PROPERTY.fullmatch(line.lstrip("\ufeff"))
        if not match:
            raise Refused("text", f"'{line[:60]}' is not NAME:VALUE")
        name, value = match[1].upper(), match[3]
        kind = value.strip().upper()
        if name == "BEGIN":
            if not inside and (begun or kind != "VCALENDAR") or len(inside) == DEPTH:
                raise Refused("text", "not one VCALENDAR, or components too deep in it")
            begun = True
            inside.append(kind)
            if len(inside) == 2:
                pieces.append(Piece(kind, ""))
        elif not inside or name == "END" and inside[-1] != kind:
            raise Refused("text", "not one VCALENDAR, or END does not match its BEGIN")
        elif name != "END" and len(inside) == 2:
            parameters = {key.upper(): text for key, text in PARAMETER.findall(match[2])}
            parameters = {key: text.replace('"', "") for key, text in parameters.items()}
            pieces[-1].properties.setdefault(name, []).append((parameters, value))
        if len(inside) == 1 and (pieces[-1].kind or name == "END"):
            pieces.append(Piece("", ""))
        pieces[-1].raw += raw
        if name == "END":
            inside.pop()
        if len(pieces) > 2 * COMPONENTS:
            raise Refused("text", f"more than {COMPONENTS} components")
    if inside or not begun:
        raise Refused("text", "a calendar is one BEGIN:VCALENDAR ... END:VCALENDAR")
    return pieces


# ------------------------------------------------------------------------ events


@dataclasses.dataclass
class Event:
    """The meaning of a VEVENT. Times are aware; floating ones and days are taken as UTC."""

    uid: str
    recurrence: datetime | None
    sequence: int
    organizer: str | None
    summary: str
    location: str
    cancelled: bool
    start: datetime
    time: str
    duration: timedelta
    rule: dict
    more: list
    except_: set

    def starts(self):
        """The beginnings, in order; endless if the rule has no end."""
        by_rule = self.by_rule() if self.rule else [self.start]
        return heapq.merge(map(utc, by_rule), sorted(map(utc, self.more)))

    def by_rule(self):
        count, until = self.rule.get("COUNT"), self.rule.get("UNTIL")
        weekly = self.rule["FREQ"] == "WEEKLY"
        step = timedelta(days=int(self.rule.get("INTERVAL", 1)) * (7 if weekly else 1))
        first, days = self.start, [0]
        if weekly:
            begin = WEEKDAYS.index(self.rule.get("WKST", "MO"))
            first -= timedelta(days=(self.start.weekday() - begin) % 7)
            named = self.rule.get("BYDAY", WEEKDAYS[self.start.weekday()]).split(",")
            days = sorted({(WEEKDAYS.index(day) - begin) % 7 for day in named})
        given = 0
        while True:
            for day in days:
                # Clock time advances, whatever the zone's offset does (zoneinfo, PEP 495).
                start = first + timedelta(days=day)
                if start < self.start:
                    continue
                if given == count or until and utc(start) > until:
                    return
                given += 1
                yield start
            first += step

    def between(self, begin, end, budget):
        """Beginning and end of each occurrence between two instants; spends steps of `budget`."""
        last = None
        for start in self.starts():
            if start >= end:
                return
            budget[0] -= 1
            if budget[0] <= 0:
                raise TooMuch
            until = start + self.duration
            if start not in self.except_ and start != last:
                if until > begin or start == until >= begin:
                    yield start, until
            last = start


class TooMuch(Exception):
    """Following the rules further would take too long."""


def utc(moment):
    return moment.astimezone(UTC)


def moment(value, parameters):
    """A date, or a date with a time, and its kind: an instant, floating or a day."""
    try:
        match = re.fullmatch(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)Z?)?", value)
        if not match:
            raise ValueError
        clock = datetime(*(int(number) for number in match.groups(default="0")))
        if match[4] is None:
            return clock.replace(tzinfo=UTC), "day"
        if value.endswith("Z"):
            return clock.replace(tzinfo=UTC), "instant"
        if "TZID" not in parameters:
            return clock.replace(tzinfo=UTC), "floating"
        zone = zoneinfo.ZoneInfo(parameters["TZID"].lstrip("/"))
        return clock.replace(tzinfo=zone), "instant"
    except (ValueError, zoneinfo.ZoneInfoNotFoundError, OSError):
        why = f"'{value[:60]}' is no date or time, or its zone is unknown"
        raise Refused("text", why) from None


def rule(value, time_kind):
    """The supported part of RRULE."""
    parts = dict(part.split("=", 1) for part in value.upper().split(";") if "=" in part)
    days = parts.get("BYDAY", "MO").split(",")
    numbers = [parts.get("INTERVAL", "1"), parts.get("COUNT", "1")]
    if (
        parts.get("FREQ") not in ("DAILY", "WEEKLY")
        or not parts.keys() <= {"FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "WKST"}
        or ("BYDAY" in parts and parts["FREQ"] == "DAILY")
        or not {*days, parts.get("WKST", "MO")} <= set(WEEKDAYS)
        or not all(re.fullmatch(r"[1-9]\d{0,4}", number) for number in numbers)
    ):
        raise Refused("text", f"the rule '{value[:100]}' is not followed by this server")
    if "COUNT" in parts:
        parts["COUNT"] = int(parts["COUNT"])
    if "UNTIL" in parts:
        until, kind = moment(parts["UNTIL"], {})
        if kind == "floating" and time_kind == "instant":
            raise Refused("text", "UNTIL has to be in UTC, with Z at its end")
        parts["UNTIL"] = until + timedelta(seconds=86_399 if kind == "day" else 0)
    return parts


def event(piece):
    """Reads a VEVENT."""
    if not piece.first("DTSTART") or not piece.first("UID"):
        raise Refused("text", "the event has no DTSTART or no UID")
    if len(piece.properties.get("RRULE", [])) > 1:
        raise Refused("text", "an event with several rules is not followed by this server")

    def times(name):
        found = []
        for parameters, value in piece.properties.get(name, []):
            for part in value.split(","):
                found.append(moment(part.split("/")[0].strip(), parameters))
        if len(found) > DATES:
            raise Refused("text", f"more than {DATES} dates in {name}")
        return found

    start, kind = times("DTSTART")[0]
    length = piece.first("DURATION")
    if piece.first("DTEND"):
        duration = utc(times("DTEND")[0][0]) - utc(start)
    elif length:
        match = DURATION.fullmatch(length[1].strip())
        if not match:
            raise Refused("text", f"'{length[1][:60]}' is no duration")
        weeks, days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
        duration = timedelta(days, seconds, weeks=weeks, hours=hours, minutes=minutes)
    else:
        duration = timedelta(days=1 if kind == "day" else 0)
    if not timedelta(0) <= duration <= timedelta(days=36_525):
        raise Refused("text", "the event ends before it begins, or lasts too long")
    sequence = (piece.first("SEQUENCE") or ({}, "0"))[1].strip()
    if not re.fullmatch(r"\d{1,9}", sequence):
        raise Refused("text", f"SEQUENCE '{sequence[:60]}' is no number")
    organizer = piece.first("ORGANIZER")
    recurrence = times("RECURRENCE-ID")
    return Event(
        uid=piece.text("UID"),
        recurrence=utc(recurrence[0][0]) if recurrence else None,
        sequence=int(sequence),
        organizer=organizer and organizer[1].strip().lower().removeprefix("mailto:"),
        summary=piece.text("SUMMARY"),
        location=piece.text("LOCATION"),
        cancelled=piece.text("STATUS").strip().upper() == "CANCELLED",
        start=start,
        time=kind,
        duration=duration,
        rule=rule(piece.first("RRULE")[1], kind) if piece.first("RRULE") else {},
        more=[at for at, _ in times("RDATE")],
        except_={utc(at) for at, _ in times("EXDATE")},
    )


# ------------------------------------------------------------------------- files


class Calendar:
    """A file, parsed."""

    def __init__(self, path):
        with open(path, "rb") as file:
            state, content = os.fstat(file.fileno()), file.read(FILE + 1)
        self.identity = identity(state)
        # Timestamps are coarse: a file just written may change again unseen.
        self.settled = time.time() - state.st_mtime > SETTLED
        self.digest = hashlib.sha256(content).digest()
        self.pieces, self.events, self.problems, self.broken = [], [], [], None
        try:
            self.pieces = split(content.decode())
        except UnicodeDecodeError:
            self.broken = "the file is not UTF-8"
        except Refused as why:
            self.broken = str(why)
        for piece in self.pieces:
            if piece.kind == "VEVENT":
                try:
                    self.events.append(event(piece))
                except Refused as why:
                    self.problems.append(f"event '{piece.text('UID')}': {why}")
        self.problems = [self.broken] if self.broken else self.problems[:PROBLEMS]


def identity(state):
    return (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


class Service:
    """A user's calendars, for all connections of the user. Each method answers a request."""

    def __init__(self, directory):
        self.directory, self.files = directory, {}
        self.changed = threading.Condition()

    def path(self, name):
        return os.path.join(self.directory, name + ".ics")

    def refresh(self):
        """Reads changed files."""
        entries = os.listdir(self.directory) if os.path.isdir(self.directory) else []
        names = [name[:-4] for name in entries if name.endswith(".ics")]
        names = [name for name in names if NAME.fullmatch(name) and os.path.isfile(self.path(name))]
        present = {}
        for name in sorted(names)[:CALENDARS]:
            with contextlib.suppress(FileNotFoundError):
                known = self.files.get(name)
                same = known and known.settled
                same = same and known.identity == identity(os.stat(self.path(name)))
                present[name] = known if same else Calendar(self.path(name))
        self.files = present

    def version(self):
        digest = hashlib.sha256()
        for name, calendar in sorted(self.files.items()):
            digest.update(name.encode() + b"/" + calendar.digest)
        return digest.hexdigest()[:16]

    @contextlib.contextmanager
    def writing(self):
        """Keeps other servers of this user from changing the files meanwhile."""
        os.makedirs(self.directory, 0o700, exist_ok=True)
        lock = os.open(os.path.join(self.directory, ".lock"), os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.refresh()
            yield
            self.changed.notify_all()
        finally:
            os.close(lock)

    def write(self, name, pieces):
        """Replaces a file as a whole."""
        content = "".join(piece.raw for piece in pieces).encode()
        if len(content) > FILE:
            raise Refused("text", f"the calendar would be longer than {FILE} bytes")
        handle, path = tempfile.mkstemp(prefix=".new-", dir=self.directory)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(handle)
            os.replace(path, self.path(name))
        except BaseException:
            os.unlink(path)
            raise
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def calendars(self):
        self.refresh()
        calendars = [
            {
                "name": name,
                "events": len({event.uid for event in calendar.events}),
                "problems": calendar.problems,
            }
            for name, calendar in sorted(self.files.items())
        ]
        return {"calendars": calendars, "version": self.version()}

    def events(self, from_, to, calendar=None):
        begin, end = instant(from_), instant(to)
        self.refresh()
        if calendar is not None and calendar not in self.files:
            raise Refused("unknown", f"there is no calendar '{calendar}'")
        found, budget, complete = [], [STEPS], True
        for name, file in self.files.items():
            if calendar not in (None, name):
                continue
            complete &= not file.problems
            replaced = {(event.uid, event.recurrence) for event in file.events}
            try:
                for event in file.events:
                    if event.cancelled:
                        continue
                    for start, until in event.between(begin, end, budget):
                        if event.recurrence is None and (event.uid, start) in replaced:
                            continue
                        found.append(occurrence(name, event, start, until))
                        if len(found) > OCCURRENCES:
                            raise TooMuch
            except (TooMuch, OverflowError):
                complete = False
        found.sort(key=lambda event: (event["start"], event["uid"]))
        events = found[:OCCURRENCES]
        return {"events": events, "complete": complete, "version": self.version()}

    def add(self, calendar, text):
        if not NAME.fullmatch(calendar):
            raise Refused("request", f"'{calendar}' is no name of a calendar")
        if len(text.encode()) > TEXT:
            raise Refused("text", f"the text is longer than {TEXT} bytes")
        given = split(text)
        added = [(event(piece), piece) for piece in given if piece.kind == "VEVENT"]
        if not added:
            raise Refused("text", "the text has no event")
        with self.writing():
            file = self.files.get(calendar)
            if file and file.broken:
                raise Refused("files", f"calendar '{calendar}' is left as it is: {file.broken}")
            if not file and len(self.files) >= CALENDARS:
                raise Refused("files", f"there are {CALENDARS} calendars; remove one first")
            head = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//Usher//calendar example//EN\r\n"
            empty = [Piece("", head), Piece("", "END:VCALENDAR\r\n")]
            pieces = list(file.pieces) if file else empty
            zones = {piece.text("TZID") for piece in pieces if piece.kind == "VTIMEZONE"}
            for piece in given:
                if piece.kind == "VTIMEZONE" and piece.text("TZID") not in zones:
                    insert(pieces, piece)
            for new, piece in added:
                pieces = [old for old in pieces if not is_older(old, new)]
                insert(pieces, piece)
            self.write(calendar, pieces)
        return {"uids": sorted({new.uid for new, _ in added})}

    def remove(self, uid, calendar=None, organizer=None, sequence=None):
        with self.writing():
            left = {}
            for name, file in self.files.items():
                pieces = [piece for piece in file.pieces if not is_event(piece, uid)]
                if calendar not in (None, name) or len(pieces) == len(file.pieces):
                    continue
                for present in (event for event in file.events if event.uid == uid):
                    if organizer not in (None, present.organizer):
                        raise Refused("outdated", f"event '{uid}' has another organizer")
                    if sequence is not None and sequence < present.sequence:
                        raise Refused("outdated", f"event '{uid}' has a higher SEQUENCE")
                left[name] = pieces
            if not left:
                raise Refused("unknown", f"there is no event with UID '{uid}'")
            for name, pieces in left.items():
                self.write(name, pieces)
        return {"calendars": sorted(left)}

    def wait(self, version, seconds):
        end = time.monotonic() + min(seconds, WAIT)
        while True:
            self.refresh()
            left = end - time.monotonic()
            if self.version() != version or left <= 0:
                return {"version": self.version()}
            self.changed.wait(min(left, LOOK))

    def answer(self, request):
        """Answers a request that is JSON; anything else is refused."""
        text, number = str, int
        known = {
            "calendars": ("calendars", {}, {}),
            "events": ("events", {"from": text, "to": text}, {"calendar": text}),
            "add": ("added", {"calendar": text, "text": text}, {}),
            "remove": (
                "removed",
                {"uid": text},
                {"calendar": text, "organizer": text, "sequence": number},
            ),
            "wait": ("version", {"version": text, "seconds": number}, {}),
        }
        if not isinstance(request, dict) or request.get("ask") not in known:
            raise ValueError("not a request")
        ask = request.pop("ask")
        name, needed, optional = known[ask]
        if not needed.keys() <= request.keys() <= needed.keys() | optional.keys():
            raise ValueError(f"a key of {ask} is missing, or there is one it does not have")
        for key, value in request.items():
            kind = {**needed, **optional}[key]
            if type(value) is not kind or (kind is number and value < 0):
                raise ValueError(f"the value of {key} is of the wrong kind")
        arguments = {key.replace("from", "from_"): value for key, value in request.items()}
        with self.changed:
            return {"answer": name, **getattr(self, ask)(**arguments)}

    def serve(self, connection):
        """Serves a connection to its end, and reports a failure."""
        try:
            self.converse(connection)
        except OSError as why:
            print(f"calendar.py: a connection ended: {why}", file=sys.stderr)

    def converse(self, connection):
        connection.settimeout(SILENCE)
        with connection, connection.makefile("rb") as reader:
            while line := reader.readline(REQUEST):
                last = False
                try:
                    if not line.endswith(b"\n"):
                        raise ValueError(f"a line breaks off or is longer than {REQUEST} bytes")
                    answer = self.answer(json.loads(line))
                except Refused as why:
                    answer = {"answer": "refused", "code": why.code, "text": str(why)}
                except OSError as why:
                    answer = {"answer": "refused", "code": "files", "text": str(why)}
                except (ValueError, RecursionError) as why:
                    answer = {"answer": "refused", "code": "request", "text": str(why)}
                    last = True
                line = json.dumps(answer).encode() + b"\n"
                if len(line) > ANSWER:
                    text = f"the answer is longer than {ANSWER} bytes; ask for less"
                    refused = {"answer": "refused", "code": "request", "text": text}
                    line = json.dumps(refused).encode() + b"\n"
                connection.sendall(line)
                if last:
                    return


def instant(text):
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", text):
        raise ValueError(f"'{text[:40]}' is no instant in UTC")
    return datetime.fromisoformat(text)


def is_event(piece, uid):
    return piece.kind == "VEVENT" and piece.text("UID") == uid


def is_older(piece, new):
    """Whether `piece` is the event that `new` is a version of."""
    if not is_event(piece, new.uid):
        return False
    try:
        old = event(piece)
    except Refused:
        return False  # not understood: left as it is
    if old.organizer != new.organizer:
        raise Refused("outdated", f"event '{new.uid}' is there with another organizer")
    if old.recurrence == new.recurrence and old.sequence > new.sequence:
        raise Refused("outdated", f"event '{new.uid}' is there with a higher SEQUENCE")
    return old.recurrence == new.recurrence


def insert(pieces, piece):
    """Before the last one, which ends the calendar."""
    pieces.insert(len(pieces) - 1, piece)


def occurrence(calendar, event, start, end):
    said = {
        "start": start.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "end": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "time": event.time,
        "calendar": calendar,
        "uid": event.uid,
        "summary": event.summary,
        "recurring": bool(event.rule or event.more or event.recurrence),
    }
    return {**said, "location": event.location} if event.location else said


# --------------------------------------------------------------------- processes


def service(directory=None):
    """The calendars in `directory`, or else those of the user that this process is."""
    os.umask(0o077)
    home = pwd.getpwuid(os.geteuid()).pw_dir  # HOME is the service account's
    return Service(directory or os.path.join(home, ".calendars"))


def serve_user(listener):
    """Serves all connections of this process's user, until there has been none for a while."""
    calendars, threads = service(), []
    while True:
        threads = [thread for thread in threads if thread.is_alive()]
        ready, _, _ = select.select([listener], [], [], IDLE)
        if not ready and not threads:
            return
        if ready and len(threads) < CONNECTIONS:
            connection, _ = listener.accept_by_user()
            threads.append(threading.Thread(target=calendars.serve, args=[connection], daemon=True))
            threads[-1].start()
        elif ready:
            time.sleep(LOOK)


def serve(port):
    """Forks a process for each user who connects and has none."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    address = ("", port)
    server = socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=True)
    with usher.ByUserListener(server) as listener:
        while True:
            listener.pre_accept()
            if os.fork() == 0:
                status = 1
                try:
                    listener.set_net_user()
                    serve_user(listener)
                    status = 0
                finally:
                    os._exit(status)


def main(arguments):
    match arguments:
        case ["serve"]:
            serve(5231)
        case ["serve", port] if port.isdecimal() and 0 < int(port) < 65_536:
            serve(int(port))
        case ["connection", *directory] if len(directory) < 2:
            service(*directory).serve(socket.socket(fileno=os.dup(0)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
