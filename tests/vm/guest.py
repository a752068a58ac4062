"""One guest: a stock Debian kernel under QEMU on the machine's own root, which it sees and cannot
change. Made by scripts/setup-vm, booted here; tests/vm/run and tests/vm/suites are its users.

The guest gets two directories by virtiofs: the machine's root, read-only, under a disk of its own
as an overlay, and a share, where its job lies and where output and status appear.
"""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from processes import ENDING, processor_seconds

HERE = Path(__file__).resolve().parent
# The share's path inside the guest. Files left in RESULTS belong to the caller afterwards.
SHARE = "/run/usher-vm"
RESULTS = f"{SHARE}/results"
# The time that a guest has to begin its job. Under TCG, booting takes 6 s, or 30 s on a busy machine.
BOOT_SECONDS = 180
# A kernel boots under KVM within this time, or KVM is unusable here.
KVM_SECONDS = 30
DISK_BYTES = 16 << 30
COMMAND_LINE = [
    "console=ttyS0",
    "loglevel=4",
    # A broken guest ends and prints the reason on its console.
    "panic=-1",
    "oops=panic",
    # On a busy machine an emulated timer is late, and the kernel would panic.
    "no_timer_check",
    # Needed by the tests, whatever the kernel's configuration.
    "lsm=lockdown,yama,landlock,bpf",
]
# Without the flags that make the kernel clear and copy memory by one repeated instruction. Emulation
# carries that out byte by byte: without them, tests take a third less time. Tried on 6.12, and of no
# use: mitigations=off, a processor without SMAP, SMEP, PKU and AVX-512, a smaller buffer of TCG. With
# init_on_alloc=0 a guest does not boot.
EMULATED_PROCESSOR = "max,la57=off,erms=off,fsrm=off,fsrs=off"


class CannotBoot(Exception):
    """Something is missing outside the guest: what, and the remedy."""


@dataclass
class Outcome:
    """How a guest ended."""

    # The job's exit status; None if the guest ended first.
    status: int | None
    # Whether the job began.
    booted: bool
    timed_out: bool
    # Times until the job began, and until the guest ended.
    boot_seconds: float
    seconds: float
    console: str
    # What the kernel has warned of while the job ran, as tests/vm/init finds it; empty: nothing.
    warnings: str
    # Processor seconds of this machine: in all, and by the time each file of the results appeared.
    processor_seconds: float
    used_by: dict[str, float]
    # The signal that killed the emulator itself, which is no verdict on the guest.
    emulator_died_of: signal.Signals | None

    def failure(self):
        """Why there is no status, or None when there is one."""
        if self.status is not None:
            return None
        if self.timed_out and self.booted:
            return f"the guest timed out after {self.seconds:.0f} s"
        if self.timed_out:
            return f"the guest did not boot within {self.seconds:.0f} s"
        if self.booted:
            return "the guest ended before its job did"
        return "the guest did not boot"


def cache():
    """Where scripts/setup-vm keeps things: the same rule as there."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or "target")
    # A relative path is relative to the project, as for a script that changes there first.
    return (HERE.parent.parent / (os.environ.get("USHER_VM_CACHE") or target / "vm")).resolve()


def kernels():
    """The kernels that are tested: series, and `newest`."""
    lines = (HERE / "kernels").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def version(kernel):
    """The version that scripts/setup-vm has fetched, as uname -r prints it in the guest; None when
    there is none."""
    file = cache() / "kernels" / kernel / "version"
    return file.read_text().strip() if file.exists() else None


def accelerator():
    """`kvm` where a guest boots under it, found by booting one, else `tcg`. Remembered."""
    remembered = cache() / "accelerator"
    if remembered.exists():
        return remembered.read_text().strip()
    found = "tcg"
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        print("vm: trying a guest under KVM", file=sys.stderr)
        # The newest that is there: `make demo KERNEL=6.12` fetches one only.
        fetched = [kernel for kernel in kernels() if version(kernel)]
        tried = (fetched or kernels())[-1]
        # Where KVM cannot execute an instruction, QEMU says so and waits for ever.
        guest = Guest(tried, accelerator="kvm", boot_seconds=KVM_SECONDS)
        if guest.run(["true"], timeout=KVM_SECONDS).status == 0:
            found = "kvm"
        else:
            print("vm: none booted; what QEMU has printed is of this try", file=sys.stderr)
    remembered.write_text(f"{found}\n")
    print(f"vm: guests run under {found} here", file=sys.stderr)
    return found


@dataclass
class Guest:
    """A kernel to boot, and how."""

    kernel: str
    memory: int = 2048
    processors: int = 2
    # Guest time counts instructions, on one processor: see QEMU's -icount.
    icount: bool = False
    # With icount too, the kernel copies memory without the instructions that count once for each byte.
    copies_words: bool = False
    # More of the kernel's command line. Of a parameter that is there twice the kernel takes the last.
    append: str = ""
    # None: the result of `accelerator`.
    accelerator: str | None = None
    # Its first process is the machine's systemd, and the job is one of its services.
    systemd: bool = False
    # What it sees as its root. The caller's directory and the cache are there at the same paths.
    root: str = "/"
    # A guest that has not begun its job by then has failed to boot.
    boot_seconds: float = BOOT_SECONDS

    def run(self, command, timeout, stdout=None, stderr=None, results=None):
        """Boots, runs `command` (a shell on the terminal when None) as root in the caller's
        directory, and waits for the guest's end. Output goes to the two binary streams as it
        appears; what the job left in $USHER_VM_RESULTS is copied to `results`."""
        directory = cache() / "kernels" / self.kernel
        if not (directory / "initramfs").exists():
            remedy = f"run scripts/setup-vm {self.kernel}"
            raise CannotBoot(f"there is no kernel {self.kernel} in {directory}: {remedy}")
        outcome = self._boot(directory, command, timeout, stdout, stderr, results)
        if outcome.emulator_died_of and not outcome.booted and not ENDING.is_set():
            # Seen with QEMU 10 under TCG, about once in a hundred boots: a false assertion in QEMU.
            how = outcome.emulator_died_of.name
            print(f"vm: {self.kernel}: QEMU died of {how} at boot; once more", file=sys.stderr)
            outcome = self._boot(directory, command, timeout, stdout, stderr, results)
        return outcome

    def _boot(self, directory, command, timeout, stdout, stderr, results):
        with tempfile.TemporaryDirectory(prefix="usher-vm-") as work:
            running = _Running(self, directory, Path(work), command)
            try:
                outcome = running.wait(timeout, stdout, stderr)
            finally:
                running.end()
            if results is not None:
                shutil.copytree(running.share / "results", results, dirs_exist_ok=True)
            return outcome


class _Running:
    def __init__(self, guest, directory, work, command):
        self.work = work
        self.share = work / "share"
        self.console = work / "console"
        self.interactive = command is None
        self.children = []
        self._fill_share(guest, directory, command)
        disk = work / "disk"
        with open(disk, "wb") as image:
            image.truncate(DISK_BYTES)
        subprocess.run(
            ["mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=1", disk], check=True
        )
        # Finding it may boot another guest, which does not count.
        self.accelerator = "tcg" if guest.icount else guest.accelerator or accelerator()
        self.boot_seconds = guest.boot_seconds
        self.started = time.monotonic()
        # No other process writes what the guest reads, so the guest can cache it; asking again is
        # slow.
        self._share_directory("root", guest.root, "--readonly", "--xattr", "--cache=always")
        self._share_directory("share", self.share)
        self._start_qemu(guest, directory, disk)

    def _fill_share(self, guest, directory, command):
        size = shutil.get_terminal_size()
        (self.share / "results").mkdir(parents=True)
        shutil.copy(HERE / "init", self.share / "init")
        environment = {
            "USHER_VM": guest.kernel,
            "USHER_VM_RESULTS": RESULTS,
            "USHER_VM_CACHE": cache(),
            "MODULES": directory / "lib" / "modules" / version(guest.kernel),
            # Debian's programs before others of this machine, such as another Python.
            "PATH": f"/usr/sbin:/usr/bin:/sbin:/bin:{os.environ['PATH']}",
            "HOME": os.environ.get("HOME", "/root"),
            "LANG": "C.UTF-8",
            "TERM": os.environ.get("TERM", "dumb"),
            "DIRECTORY": os.getcwd(),
            "INIT": "systemd" if guest.systemd else "",
            "ROWS": size.lines,
            "COLUMNS": size.columns,
        }
        with open(self.share / "environment", "w") as file:
            for name, value in environment.items():
                file.write(f"{name}={shlex.quote(str(value))}\n")
        if command is not None:
            (self.share / "job").write_text(f"exec {shlex.join(command)}\n")
        (self.share / "stdout").touch()
        (self.share / "stderr").touch()

    def _start(self, command, **options):
        # These end with this process, however it ends.
        command = ["setpriv", "--pdeathsig", "KILL", *map(str, command)]
        child = subprocess.Popen(command, **options)
        self.children.append(child)
        return child

    def _share_directory(self, tag, directory, *options):
        log = open(self.work / f"virtiofsd-{tag}", "wb")
        with log, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.work / f"{tag}.sock"))
            listener.listen(1)
            self._start(
                [
                    cache() / "virtiofsd" / "bin" / "virtiofsd",
                    f"--fd={listener.fileno()}",
                    f"--shared-dir={directory}",
                    # Overlays on a share with announced submounts return EREMOTE.
                    "--no-announce-submounts",
                    *options,
                ],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _start_qemu(self, guest, directory, disk):
        if guest.icount and not guest.copies_words:
            # Figures of docs/performance.md are those of this processor.
            processor = "max,la57=off"
        else:
            processor = "host" if self.accelerator == "kvm" else EMULATED_PROCESSOR
        command = [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot",
            "-display", "none", "-nic", "none",
            "-machine", "q35,memory-backend=memory", "-accel", self.accelerator,
            "-cpu", processor, "-smp", "1" if guest.icount else str(guest.processors), "-m", f"{guest.memory}M",
            "-object", f"memory-backend-memfd,id=memory,size={guest.memory}M,share=on",
            "-kernel", directory / "vmlinuz", "-initrd", directory / "initramfs",
            "-append", " ".join([*COMMAND_LINE, guest.append]), "-serial", "chardev:console",
            "-drive", f"if=none,id=disk,format=raw,cache=unsafe,file={disk}",
            "-device", "virtio-blk-pci,drive=disk",
        ]  # fmt: skip
        for tag in ("root", "share"):
            command += ["-chardev", f"socket,id={tag},path={self.work / f'{tag}.sock'}"]
            command += ["-device", f"vhost-user-fs-pci,chardev={tag},tag={tag}"]
        if guest.icount:
            command += ["-icount", "shift=0"]
        if self.interactive:
            command += ["-chardev", f"stdio,id=console,signal=off,logfile={self.console}"]
            self.qemu = self._start(command)
        else:
            command += ["-chardev", f"file,id=console,path={self.console}"]
            self.qemu = self._start(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)

    def wait(self, timeout, stdout, stderr):
        """Follows the output until the guest's end or `timeout` seconds after its job began."""
        booted = None
        timed_out = False
        used, used_by = 0, {}
        with open(self.share / "stdout", "rb") as out, open(self.share / "stderr", "rb") as err:
            while True:
                # A process that has ended counts as 0 in `used()`.
                used = max(used, self.used())
                ended = self.qemu.poll() is not None
                now = time.monotonic()
                if booted is None and (self.share / "booted").exists():
                    booted = now
                for file in os.listdir(self.share / "results"):
                    if file not in used_by:
                        used_by[file] = used
                for source, sink in ((out, stdout), (err, stderr)):
                    if (data := source.read()) and sink is not None:
                        sink.write(data)
                        sink.flush()
                if ended or ENDING.is_set():
                    break
                boot_limit = self.started + self.boot_seconds
                job_limit = booted + timeout if booted and timeout is not None else None
                limit = job_limit if booted else boot_limit
                if limit is not None and now > limit:
                    timed_out = True
                    break
                time.sleep(0.05)
        status = self.share / "status"
        code = self.qemu.poll()
        return Outcome(
            status=int(status.read_text()) if status.exists() and not timed_out else None,
            booted=booted is not None,
            timed_out=timed_out,
            boot_seconds=(booted or now) - self.started,
            seconds=now - self.started,
            warnings=self.warnings(),
            console=self.console.read_text(errors="replace") if self.console.exists() else "",
            processor_seconds=used,
            used_by=used_by,
            emulator_died_of=signal.Signals(-code) if code is not None and code < 0 else None,
        )

    def warnings(self):
        found = self.share / "warnings"
        return found.read_text(errors="replace").strip() if found.exists() else ""

    def used(self):
        """The processor seconds that the guest has used."""
        return sum(processor_seconds(child.pid) for child in self.children)

    def end(self):
        """Ends all processes that still run; QEMU first, because it reports the end of others."""
        for child in reversed(self.children):
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
            child.wait()
