//! Counts what acts of programs (bench/servers/acts.c), and compiling zlib, cost with the framework of
//! mandatory access control and without, in a guest whose clock counts instructions: see tests/vm/run --icount.
//!
//!     usher-bench-mac ROUNDS          all states of the framework in turn, in each round
//!     usher-bench-mac ROUNDS LSM      the kernel as it is, which must have this LSM in force
//!
//! The states are: no LSM program; empty ones, which show what the kernel takes for calling any; the
//! framework without a module; with the module `none`, which declares every entry point; with a module
//! that declares `file_open` only; with `biba`, for processes without a level, then for some with one. Prints `usher_bench::Figure`s as JSON.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use usher_bench::Figure;
use usher_bench::busy::{Busy, check_clock};
use usher_bench::sources::zlib;
use usher_bpf::{Code, code};
use usher_mac::{Framework, Module};
use usher_system_label::process::set_own;

const PINS: &str = "/sys/fs/bpf/usher_bench_mac";
const LSMS: &str = "/sys/kernel/security/lsm";
/// In memory: a guest waits for a disk, and that time would count.
const ACTS: &str = "/dev/shm/usher-bench-acts";
static ACTS_BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/usher-bench-acts"));
/// In memory, as the acts are.
const PROJECT: &str = "/dev/shm/usher-bench-zlib";
/// Compiles it: a driver, a compiler and an assembler for each of its 15 files.
const COMPILE: &str = "cc -O2 -DHAVE_UNISTD_H -c *.c && ar rcs libz.a *.o && rm libz.a *.o";
/// A module that declares `file_open` only.
static FILE_OPEN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/file_open.bpf.o"));
/// Programs that permit, at hooks of the framework.
static EMPTY: Code = code!("mac_empty", "empty");
/// A module with labels.
const BIBA: &str = "biba";
/// The label of this process while acts with a level are counted. At this level the files and interfaces
/// of the acts are permitted, and loading programs is.
const LEVEL: &str = "biba/high(low-high)";
/// Names of what the kernel has compiled.
const SYMBOLS: &str = "/proc/kallsyms";
/// Before each count, for what the kernel still does about the last loading.
const REST: Duration = Duration::from_secs(2);
/// The kernel detaches and frees programs within this time.
const PATIENCE: Duration = Duration::from_secs(300);

/// The samples of each act in each state, in order.
type Samples = BTreeMap<String, Vec<f64>>;

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("USHER_VM").is_none() {
        return Err(
            "attaches programs to the whole host: run it in a guest, by tests/vm/run".into(),
        );
    }
    check_clock()?;
    fs::write(ACTS, ACTS_BYTES)?;
    fs::set_permissions(ACTS, Permissions::from_mode(0o755))?;
    copy_project()?;
    // The first run waits for the machine's disk, later ones find the compiler in memory.
    compile()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut samples = Samples::new();
    match arguments.as_slice() {
        [rounds] => {
            for _ in 0..rounds.parse::<usize>()? {
                measure_framework(&mut samples)?;
            }
        }
        [rounds, lsm] => {
            require(lsm)?;
            for _ in 0..rounds.parse::<usize>()? {
                measure(lsm, &mut samples)?;
            }
        }
        _ => return Err("usage: usher-bench-mac ROUNDS [LSM]".into()),
    }
    let figures = samples.into_iter().map(|(name, samples)| Figure {
        name,
        unit: "instructions".into(),
        samples,
    });
    serde_json::to_writer_pretty(io::stdout(), &figures.collect::<Vec<_>>())?;
    println!();
    Ok(())
}

/// One round of all states.
fn measure_framework(samples: &mut Samples) -> Result<(), Box<dyn Error>> {
    measure("without", samples)?;
    let attached = EMPTY.open()?.load()?.attach_at_hooks()?;
    measure("empty", samples)?;
    drop(attached);
    await_detached()?;
    let mut framework = Framework::open(Path::new(PINS))?;
    let attached = framework.attached()?;
    if !attached.is_empty() {
        return Err(format!("without a module, programs are attached: {attached:?}").into());
    }
    measure("no_module", samples)?;
    let biba = Module::named(BIBA).ok_or("there is no module biba")?;
    for module in [
        Module::none(),
        Module::from_object(FILE_OPEN.to_vec())?,
        biba,
    ] {
        framework.load(&module)?;
        if !has_attached(&fs::read_to_string(SYMBOLS)?) {
            return Err(format!("{SYMBOLS} does not show what is attached").into());
        }
        eprintln!("{}: {} hooks", module.name(), framework.attached()?.len());
        measure(module.name(), samples)?;
        if module.name() == BIBA {
            // For good, and for all children. It is forgotten with the module.
            set_own(&LEVEL.parse()?)?;
            measure("level", samples)?;
        }
        framework.unload(module.name())?;
        await_detached()?;
    }
    framework.close()?;
    await_detached()
}

/// Waits until no program is attached. The kernel releases links some seconds after the last descriptor
/// or pin; until then hooks call their programs, and the slots of a module are busy for the next one.
fn await_detached() -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    while has_attached(&fs::read_to_string(SYMBOLS)?) {
        if begun.elapsed() > PATIENCE {
            return Err("programs are still attached after they were released".into());
        }
        std::thread::sleep(REST);
    }
    Ok(())
}

/// Whether the kernel has code that calls a program at a hook, or a module's check.
fn has_attached(symbols: &str) -> bool {
    let code = symbols.lines().filter(|line| line.ends_with("[bpf]"));
    let mut names = code.filter_map(|line| line.split(' ').nth(2));
    // bpf_prog_TAG_NAME, where a tag has sixteen digits.
    let is_check = |name: &str| {
        let program = name
            .strip_prefix("bpf_prog_")
            .and_then(|rest| rest.get(17..));
        program.is_some_and(|program| program.starts_with("check_"))
    };
    names.any(|name| name.starts_with("bpf_trampoline_") || is_check(name))
}

/// Requires that the kernel has an LSM in force.
fn require(lsm: &str) -> Result<(), Box<dyn Error>> {
    let lsms = fs::read_to_string(LSMS)?;
    if lsms.trim().split(',').any(|one| one == lsm) {
        return Ok(());
    }
    Err(format!("{lsm} is not in force: {LSMS} has {lsms}").into())
}

/// Counts all acts once, in the state that the kernel is in.
fn measure(state: &str, samples: &mut Samples) -> Result<(), Box<dyn Error>> {
    std::thread::sleep(REST);
    let output = Command::new(ACTS).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{ACTS}: {}", output.status).into());
    }
    for line in String::from_utf8(output.stdout)?.lines() {
        let (act, count) = line
            .split_once(' ')
            .ok_or_else(|| format!("{ACTS} printed a line without a figure: {line}"))?;
        let name = format!("mac/{act}/{state}");
        samples.entry(name).or_default().push(count.parse()?);
    }
    let name = format!("mac/compile/{state}");
    samples.entry(name).or_default().push(compile()?);
    Ok(())
}

/// Puts the sources of the C project where they are compiled.
fn copy_project() -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(PROJECT)?;
    let mut copied = 0;
    let sources = zlib()?;
    for entry in fs::read_dir(&sources)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|ending| ending == "c" || ending == "h")
        {
            let name = path.file_name().ok_or("a file without a name")?;
            fs::copy(&path, Path::new(PROJECT).join(name))?;
            copied += 1;
        }
    }
    if copied == 0 {
        return Err(format!("{} has no source files", sources.display()).into());
    }
    Ok(())
}

/// Compiles the C project once. Returns the processor time of the whole guest in nanoseconds, which are
/// instructions; what it waits for files of the machine is left out.
fn compile() -> Result<f64, Box<dyn Error>> {
    let busy = Busy::begin()?;
    let status = Command::new("sh")
        .args(["-c", COMPILE])
        .current_dir(PROJECT)
        .status()?;
    if !status.success() {
        return Err(format!("{COMPILE}: {status}").into());
    }
    Ok(busy.end()?.1)
}

#[cfg(test)]
mod tests {
    use super::has_attached;

    #[test]
    fn trampolines_and_checks_are_seen_in_symbols() {
        let kernel = "ffffffff81000000 t bpf_trampoline_update\nffffffff81000000 t foo_check_bar\n";
        let tag = "6442536467cca4e1";
        let dispatcher =
            format!("ffffffffc0000000 t bpf_prog_{tag}_dispatch_bprm_check_security\t[bpf]\n");
        assert!(!has_attached(&format!("{kernel}{dispatcher}")));
        let check = format!("bpf_prog_{tag}_check_file_open");
        for name in ["bpf_trampoline_6442", &check] {
            let line = format!("ffffffffc0001000 t {name}\t[bpf]\n");
            assert!(
                has_attached(&format!("{kernel}{line}{dispatcher}")),
                "{name}"
            );
        }
    }
}
