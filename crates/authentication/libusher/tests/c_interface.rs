//! `usher.h`, `usher_mac.h`, the libraries and the manual pages as programs in C meet them: installed below a
//! prefix, found by pkg-config, on a host where no daemon runs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"];
const PREFIX: &str = "/opt/usher";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a command that has to succeed.
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    output
}

fn stdout(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).unwrap()
}

/// The files that `make install` puts below DESTDIR for programs in C.
struct Installed {
    folder: tempfile::TempDir,
}

impl Installed {
    fn new(target: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let variable = |name: &str, value: &Path| format!("{name}={}", value.display());
        // `make` finds the built libraries beside this test.
        let test = std::env::current_exe().unwrap();
        let mut make = Command::new("make");
        // This make must not use the job server of a make that runs the tests.
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
        make.arg("-C").arg(root()).arg(target);
        make.arg(variable("BUILT", test.parent().unwrap()));
        make.arg(variable("CARGO_TARGET_DIR", &folder.path().join("target")));
        make.arg(variable("DESTDIR", folder.path()));
        make.arg(variable("PREFIX", Path::new(PREFIX)));
        run(&mut make);
        Self { folder }
    }

    fn path(&self, below: &str) -> PathBuf {
        let prefix = self.folder.path().join(PREFIX.trim_start_matches('/'));
        prefix.join(below)
    }

    fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_LIBDIR", self.path("lib/pkgconfig"));
        command.env("PKG_CONFIG_SYSROOT_DIR", self.folder.path());
        let words = stdout(command.args(arguments).arg("usher"));
        words.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles and links a program as pkg-config says.
    fn program(&self, source: &Path, compiler: &[&str], pkg_config: &[&str]) -> PathBuf {
        let program = self.folder.path().join("program");
        let mut cc = Command::new("cc");
        cc.args(compiler).arg("-o").arg(&program).arg(source);
        run(cc.args(self.pkg_config(pkg_config)));
        program
    }

    /// Runs a program where there is no network and no daemon's socket.
    fn run_alone(&self, program: &Path) -> Output {
        let mut command = Command::new("timeout");
        command.args(["60", "unshare", "--mount", "--net", "sh", "-ec"]);
        command.args(["ip link set lo up; mount -t tmpfs none /run; exec \"$0\""]);
        command
            .arg(program)
            .env("LD_LIBRARY_PATH", self.path("lib"));
        command.output().unwrap()
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(name)
}

/// The functions of a header whose names have this prefix: names before a parenthesis.
fn declared_in(header: &str, prefix: &str) -> BTreeSet<String> {
    let header = read(root().join("include").join(header));
    let names = header.split('(').filter_map(|before| {
        let name = before
            .rsplit(|c: char| !c.is_alphanumeric() && c != '_')
            .next()?;
        name.starts_with(prefix).then(|| name.to_owned())
    });
    names.collect()
}

/// The functions of the library.
fn declared() -> BTreeSet<String> {
    let headers = ["usher.h", "usher_mac.h"].into_iter();
    headers
        .flat_map(|header| declared_in(header, "usher_"))
        .collect()
}

/// Compiles without linking.
fn check(compiler: &str, standard: &str, file: &Path) {
    let mut command = Command::new(compiler);
    command.arg(standard).args(STRICT).arg("-fsyntax-only");
    run(command.arg("-I").arg(root().join("include")).arg(file));
}

#[test]
fn each_header_alone_compiles_as_c_and_as_cpp() {
    let folder = tempfile::tempdir().unwrap();
    for (compiler, standard, file) in [
        ("cc", "-std=c11", "alone.c"),
        ("clang", "-std=c11", "alone.c"),
        ("c++", "-std=c++17", "alone.cc"),
    ] {
        let file = folder.path().join(file);
        for header in ["usher.h", "usher_mac.h"] {
            std::fs::write(&file, format!("#include <{header}>\nint unused_file;\n")).unwrap();
            check(compiler, standard, &file);
        }
    }
}

#[test]
fn the_shared_library_exports_what_the_header_declares() {
    let installed = Installed::new("install-library");
    let library = installed.path("lib/libusher.so");
    let name = concat!("libusher.so.", env!("CARGO_PKG_VERSION_MAJOR"));
    let dynamic = stdout(Command::new("readelf").arg("-d").arg(&library));
    assert!(
        dynamic.contains(&format!("Library soname: [{name}]")),
        "{dynamic}"
    );
    let whole = concat!("libusher.so.", env!("CARGO_PKG_VERSION"));
    for (link, target) in [("lib/libusher.so", name), (&*format!("lib/{name}"), whole)] {
        let found = std::fs::read_link(installed.path(link)).unwrap();
        assert_eq!(found, Path::new(target));
    }
    let symbols = stdout(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(&library),
    );
    let shown = symbols.lines().filter_map(|line| line.split(' ').nth(2));
    assert_eq!(
        shown.map(str::to_owned).collect::<BTreeSet<_>>(),
        declared()
    );
}

#[test]
fn without_a_daemon_each_call_says_what_is_wrong() {
    let installed = Installed::new("install-library");
    let strict = [&STRICT[..], &["-std=gnu11", "-pthread"]].concat();
    let options = ["--cflags", "--libs"];
    let program = installed.program(&source("errors.c"), &strict, &options);
    let output = installed.run_alone(&program);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{output:?}");
    assert_eq!(said, "0 failed expectations\n");
}

// Threat model: M92
#[test]
fn labels_of_files_are_got_and_set_from_c() {
    let installed = Installed::new("install-library");
    let strict = [&STRICT[..], &["-std=gnu11"]].concat();
    let program = installed.program(&source("labels.c"), &strict, &["--cflags", "--libs"]);
    let output = installed.run_alone(&program);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{output:?}");
    assert_eq!(said, "0 failed expectations\n");
}

#[test]
fn the_manual_pages_example_prints_a_label() {
    let installed = Installed::new("install-library");
    let example = installed.folder.path().join("example.c");
    std::fs::write(&example, example_of("mac_get_file.3.md")).unwrap();
    let strict = [&STRICT[..], &["-std=gnu11"]].concat();
    let program = installed.program(&example, &strict, &["--cflags", "--libs"]);
    let file = usher::mac::LabelledFile::Path(&example);
    file.set(&"mls/low,biba/high,partition/0".parse().unwrap())
        .unwrap();
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", installed.path("lib"));
    assert_eq!(stdout(command.arg(&example)), "biba/high,mls/low\n");
}

#[test]
fn pkg_config_links_with_either_library() {
    let installed = Installed::new("install-library");
    let version = installed.pkg_config(&["--modversion"]);
    assert_eq!(version, [env!("CARGO_PKG_VERSION")]);
    let example = installed.folder.path().join("example.c");
    std::fs::write(&example, example_of("connect_by_user.3.md")).unwrap();
    let needed = |program: &Path| stdout(Command::new("readelf").arg("-d").arg(program));
    let says_why = |program: &Path| {
        let output = installed.run_alone(program);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("usher-signer.service"), "{said}");
    };

    let program = installed.program(&example, &[], &["--cflags", "--libs"]);
    let name = concat!("[libusher.so.", env!("CARGO_PKG_VERSION_MAJOR"), "]");
    assert!(needed(&program).contains(name));
    says_why(&program);

    let whole = ["--static", "--cflags", "--libs"];
    let program = installed.program(&example, &["-static"], &whole);
    assert!(!needed(&program).contains("NEEDED"));
    says_why(&program);

    // Links libusher statically and the C library dynamically: only libusher.a is left.
    for entry in std::fs::read_dir(installed.path("lib")).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name() != Some(OsStr::new("libusher.a")) && !path.is_dir() {
            std::fs::remove_file(path).unwrap();
        }
    }
    let program = installed.program(&example, &[], &whole);
    assert!(needed(&program).contains("libc.so") && !needed(&program).contains("libusher"));
    says_why(&program);
}

/// The program of a manual page's EXAMPLE section.
fn example_of(page: &str) -> String {
    let page = read(root().join("docs/man").join(page));
    let (_, section) = page.split_once("\n# EXAMPLE\n").unwrap();
    let (section, _) = section.split_once("\n# ").unwrap();
    let lines = section.lines().filter_map(|line| match line {
        "" => Some(""),
        line => line.strip_prefix("    "),
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn the_manual_pages_example_compiles_and_names_what_is_missing() {
    let installed = Installed::new("install-library");
    let example = installed.folder.path().join("example.c");
    std::fs::write(&example, example_of("usher_accept_by_user.3.md")).unwrap();
    let strict = [&STRICT[..], &["-std=gnu11"]].concat();
    let program = installed.program(&example, &strict, &["--cflags", "--libs"]);
    let output = installed.run_alone(&program);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("usher_set_accept_mode: "), "{said}");
    assert!(said.contains("usher-keeper.service"), "{said}");
}

#[test]
fn each_function_has_a_manual_page_that_names_it() {
    let installed = Installed::new("install-man");
    let page = |name: &str| installed.path(&format!("share/man/man3/{name}.3"));
    let mut names = declared();
    let of_the_paper = [
        "connect_by_user",
        "pre_accept",
        "set_net_user",
        "accept_by_user",
    ];
    names.extend(of_the_paper.map(str::to_owned));
    names.extend(declared_in("usher_mac.h", "mac_"));
    for name in names {
        let mut text = read(page(&name));
        if let Some(other) = text.strip_prefix(".so man3/") {
            text = read(page(other.trim_end().trim_end_matches(".3")));
        }
        let text = text.replace('\\', "");
        let (_, section) = text.split_once(".SH NAME\n").unwrap();
        let (title, _) = section.split_once("\n.SH").unwrap();
        let mut words = title.split(|c: char| !c.is_alphanumeric() && c != '_');
        assert!(words.any(|word| word == name), "{name}: {title}");
    }
}
