//! No C of the repository compiles with a warning, neither with this system's kernel headers nor with headers
//! that define more names. Kernel programs define each number once. Builds accept warnings: see
//! `Build::compile`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_rs::libbpf_sys::API_HEADERS;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The folders of kernel programs, from the root of the repository.
const FOLDERS: [&str; 3] = ["bpf", "bench/modules", "examples/module"];
/// The beginnings of names that headers of the kernel define, or may define one day.
const OF_THE_KERNEL: [&str; 28] = [
    "AF_", "ATTR_", "CAP_", "CLONE_", "FMODE_", "IPC_", "IPPROTO_", "IPV6_", "IP_", "LINK_",
    "LSM_", "MAP_", "MAY_", "MQUEUE_", "NF_", "O_", "PACKET_", "PROT_", "PTRACE_", "SB_", "SET",
    "SHM_", "SIG", "SOCK_", "SOL_", "SO_", "S_", "TCP_",
];
/// Beginnings of Usher's own names that look like names of the kernel.
const OWN: [&str; 6] = [
    "IPV6_FRAGMENT",
    "MAY_ENTER",
    "MAY_FLOW",
    "SETTINGS",
    "SET_ADDRESSES",
    "SOCKET",
];
/// The header in which our sources define the kernel's names.
const NUMBERS: &str = "usher_numbers.h";
/// Names that a program or a module defines for the headers that it includes, and a file's own names.
const OF_ONE_PROGRAM: [&str; 11] = [
    "ATTRIBUTES",
    "CHANGES_NAME",
    "COUNT",
    "KIND",
    "LICENSE",
    "MAY_FLOW",
    "PACKET",
    "REFUSED",
    "USES_IPC",
    "USES_SOCKET",
    "USUAL",
];
/// Headers that define some of the names already, and a structure of linux/lsm.h, which older systems lack.
const PRESENT: &str =
    "#include <linux/in.h>\n#include <linux/in6.h>\nstruct lsm_ctx {\n\t__u64 id;\n};\n";

/// A folder that is removed when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder, with libbpf's headers as builds have them.
    fn new(name: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("usher-{name}-{}", std::process::id()));
        let headers = folder.join("bpf");
        fs::create_dir_all(&headers)?;
        for (name, text) in API_HEADERS {
            fs::write(headers.join(name), text)?;
        }
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The files below a folder whose names end like this, sorted.
fn files(folder: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, end)?);
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Compiles all kernel programs with every warning as an error. The error has clang's messages.
fn take_all(scratch: &Scratch, more: &[&str]) -> Result {
    let root = root();
    let mut complaints = String::new();
    let mut count = 0;
    for folder in FOLDERS {
        for program in files(&root.join(folder), ".bpf.c")? {
            count += 1;
            let output = Command::new("clang")
                .args([
                    "-target",
                    "bpf",
                    "-mcpu=v3",
                    "-O2",
                    "-fsyntax-only",
                    "-Wall",
                    "-Werror",
                ])
                .arg(format!("-D__TARGET_ARCH_{}", target()))
                .arg("-I")
                .arg(root.join("bpf/include"))
                .arg("-isystem")
                .arg(&scratch.0)
                .arg("-idirafter")
                .arg(format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH))
                .args(more)
                .arg(&program)
                .output()?;
            if !output.status.success() {
                complaints += &String::from_utf8_lossy(&output.stderr);
            }
        }
    }
    assert!(count > 30, "only {count} kernel programs were found");
    if complaints.is_empty() {
        Ok(())
    } else {
        Err(complaints.into())
    }
}

/// libbpf's name of this machine's architecture.
fn target() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A name that a file defines.
struct Definition {
    file: PathBuf,
    name: String,
    value: String,
}

impl Definition {
    fn is_of_kernel(&self) -> bool {
        OF_THE_KERNEL
            .iter()
            .any(|begin| self.name.starts_with(begin))
            && !OWN.contains(&self.name.as_str())
    }
}

/// The definitions in the sources below a folder, without those that take arguments.
fn definitions(folder: &str) -> Result<Vec<Definition>> {
    let mut found = Vec::new();
    for end in [".c", ".h"] {
        for file in files(&root().join(folder), end)? {
            for line in fs::read_to_string(&file)?.lines() {
                let definition = line.strip_prefix("#define ");
                if let Some((name, value)) = definition.and_then(|text| text.split_once(' '))
                    && !name.contains('(')
                {
                    let value = value.split("/*").next().unwrap_or_default().trim();
                    found.push(Definition {
                        file: file.clone(),
                        name: name.into(),
                        value: value.into(),
                    });
                }
            }
        }
    }
    Ok(found)
}

/// The kernel's names that our sources define, with their values.
fn names() -> Result<BTreeMap<String, String>> {
    let mut names = BTreeMap::new();
    for folder in FOLDERS {
        for Definition { file, name, value } in definitions(folder)?
            .into_iter()
            .filter(Definition::is_of_kernel)
        {
            let former = names.insert(name.clone(), value.clone());
            if former.is_some_and(|former| former != value) {
                return Err(format!("{}: {name} has two values", file.display()).into());
            }
        }
    }
    Ok(names)
}

#[test]
fn no_kernel_program_has_a_warning() -> Result {
    take_all(&Scratch::new("warnings")?, &[])
}

/// As in linux-libc-dev 6.12, which brought `IPPROTO_SMC`: a member of an enumeration, and a macro of its
/// name.
#[test]
fn headers_may_define_the_kernels_names_one_day() -> Result {
    let scratch = Scratch::new("names")?;
    let names = names()?;
    assert!(names.contains_key("IPPROTO_SMC"), "{names:?}");
    let mut header = String::from(PRESENT);
    for (name, value) in names {
        header += &format!(
            "#ifndef {name}\nenum {{ {name} = {value} }};\n#define {name} {name}\n#endif\n"
        );
    }
    let path = scratch.0.join("later.h");
    fs::write(&path, header)?;
    take_all(&scratch, &["-include", path.to_str().ok_or("no text")?])
}

#[test]
fn kernel_programs_have_the_kernels_numbers_from_one_header() -> Result {
    let (numbers, elsewhere): (Vec<_>, Vec<_>) = definitions(FOLDERS[0])?
        .into_iter()
        .filter(Definition::is_of_kernel)
        .partition(|definition| definition.file.ends_with(NUMBERS));
    assert!(
        numbers.len() > 60,
        "only {} names were found",
        numbers.len()
    );
    let elsewhere: Vec<_> = elsewhere
        .iter()
        .map(|definition| (&definition.name, &definition.file))
        .collect();
    assert!(elsewhere.is_empty(), "not in {NUMBERS}: {elsewhere:#?}");
    Ok(())
}

#[test]
fn no_two_files_of_kernel_programs_define_the_same_name() -> Result {
    let mut files = BTreeMap::<_, Vec<_>>::new();
    for Definition { file, name, .. } in definitions(FOLDERS[0])? {
        files.entry(name).or_default().push(file);
    }
    files.retain(|name, files| {
        files.dedup();
        files.len() > 1 && !OF_ONE_PROGRAM.contains(&name.as_str())
    });
    assert!(files.is_empty(), "{files:#?}");
    Ok(())
}

#[test]
fn no_program_of_the_measurements_has_a_warning() -> Result {
    for program in files(&root().join("bench/servers"), ".c")? {
        let status = Command::new("cc")
            .args([
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-c",
                "-o",
                "/dev/null",
            ])
            .arg(&program)
            .status()?;
        assert!(status.success(), "{}", program.display());
    }
    Ok(())
}
