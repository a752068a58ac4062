//! Known holes of this kernel that a setting or an update closes (docs/known-holes.md).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use usher_local::paths::MOUNTS;
use usher_local::roles::OFFERS;
use usher_policy::{Policy, ServedBy, joined};

use super::{Finding, some};

/// The sysctl by which users may load BPF programs.
const UNPRIVILEGED_BPF: &str = "/proc/sys/kernel/unprivileged_bpf_disabled";

/// Whether users may load BPF programs: then they can use each fault of the kernel's verifier.
pub fn unprivileged_bpf() -> Finding {
    let value = std::fs::read_to_string(UNPRIVILEGED_BPF);
    let outcome = bpf_of_users(value.as_deref().ok().map(str::trim));
    let need = "keeping users' processes from faults of the kernel's verifier of BPF programs";
    Finding::optional("BPF of users", None, need, outcome)
}

/// The outcome by the sysctl's value; none: this kernel does not have the sysctl.
fn bpf_of_users(value: Option<&str>) -> (bool, String) {
    match value {
        Some("0") => {
            let text = "kernel.unprivileged_bpf_disabled is 0, so every user may load BPF programs: set it \
                        to 2, for instance in /etc/sysctl.d";
            (false, text.into())
        }
        Some(value) => {
            let text = format!(
                "kernel.unprivileged_bpf_disabled is {value}: only root loads BPF programs"
            );
            (true, text)
        }
        None => (true, "this kernel lets no user load BPF programs".into()),
    }
}

/// A version of Linux: 6.1.103.
type Version = (u32, u32, u32);

/// A hole of Landlock, which confines services with `files`.
struct Hole {
    cve: &'static str,
    what: &'static str,
    /// The first version without the hole, of each series that was mended; later series never had it.
    mended: &'static [Version],
    /// The hole concerns only files inside a bind mount.
    in_bind_mounts: bool,
}

const HOLES: [Hole; 2] = [
    Hole {
        cve: "CVE-2024-42318",
        what: "a process loses its restrictions when its child changes the session keyring",
        mended: &[(6, 1, 103), (6, 6, 44), (6, 10, 3)],
        in_bind_mounts: false,
    },
    Hole {
        cve: "CVE-2025-68736",
        what: "rights widen for folders that are moved out of a bind mount",
        mended: &[(6, 18, 2)],
        in_bind_mounts: true,
    },
];

impl Hole {
    fn has(&self, version: Version) -> bool {
        let series = |(major, minor, _): Version| (major, minor);
        let newest = self.mended.iter().copied().map(series).max();
        let is_later = Some(series(version)) > newest;
        let mut mended = self.mended.iter();
        !is_later && !mended.any(|first| series(*first) == series(version) && version >= *first)
    }
}

/// The holes of this kernel's Landlock; none if no service has `files`.
pub fn landlock(policy: &Policy) -> Option<Finding> {
    let paths = paths(policy);
    if paths.is_empty() {
        return None;
    }
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let version = version(&text(system.release()), &text(system.version()))?;
    let outcome = match std::fs::read_to_string(MOUNTS) {
        Ok(mounts) => holes(version, &paths, &mounts),
        Err(error) => (
            false,
            format!("cannot read {MOUNTS}: {error}; run this as root"),
        ),
    };
    let need = "the limits that `files` sets for services";
    Some(Finding::optional(
        "Landlock's holes",
        Some(OFFERS),
        need,
        outcome,
    ))
}

/// The absolute paths in `files` statements.
fn paths(policy: &Policy) -> BTreeSet<PathBuf> {
    let services = policy.services.values();
    let files = services.filter_map(|service| match &service.served_by {
        ServedBy::Program(program) => program.files.as_ref(),
        ServedBy::Account(_) | ServedBy::Backend(_) => None,
    });
    // Users have homes of their own, most of them in one place.
    let home = Path::new("/home");
    files.flatten().map(|rule| rule.path_for(home)).collect()
}

/// The version of a kernel. Debian 12 has the version only in the text about the build.
fn version(release: &str, build: &str) -> Option<Version> {
    let of_debian = build.split_once("Debian ").map(|(_, number)| number);
    let text = of_debian.unwrap_or(release);
    let mut numbers = text
        .split(|next: char| !next.is_ascii_digit())
        .map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next().unwrap_or(0)))
}

fn holes(version: Version, paths: &BTreeSet<PathBuf>, mounts: &str) -> (bool, String) {
    let (major, minor, patch) = version;
    let linux = format!("Linux {major}.{minor}.{patch}");
    let bound: Vec<String> = paths
        .iter()
        .filter(|path| is_in_bind_mount(path, mounts))
        .map(|path| path.display().to_string())
        .collect();
    let (mut open, mut dormant) = (Vec::new(), Vec::new());
    for hole in HOLES.iter().filter(|hole| hole.has(version)) {
        let named = format!("{} ({})", hole.cve, hole.what);
        match (hole.in_bind_mounts, bound.is_empty()) {
            (false, _) => open.push(format!("{named}: update")),
            (true, false) => open.push(format!(
                "{named}, and `files` names what lies inside one ({}): update, or name other places",
                some(&bound)
            )),
            (true, true) => dormant.push(format!("{named}; `files` names nothing inside one")),
        }
    }
    if !open.is_empty() {
        let text = format!(
            "unless the distribution has mended it, {linux} has {}",
            joined(open, "; and ")
        );
        return (false, text);
    }
    let text = match joined(dormant, "; and ").as_str() {
        "" => format!("{linux} has none that are known to Usher"),
        dormant => format!("unless the distribution has mended it, {linux} has {dormant}"),
    };
    (true, text)
}

/// Whether a path lies in a mount whose root is not that of its file system (proc_pid_mountinfo(5)).
fn is_in_bind_mount(path: &Path, mounts: &str) -> bool {
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(3);
        let (root, point) = (words.next()?, words.next()?);
        // Subvolumes are no bind mounts.
        let kind = line.split_once(" - ")?.1.split(' ').next()?;
        let is_bound = root != "/" && kind != "btrfs";
        Some((unescaped(point), is_bound))
    });
    let over = mounts.filter(|(point, _)| path.starts_with(point));
    // Of several mounts at one point, the last is on top.
    let deepest = over.max_by_key(|(point, _)| point.components().count());
    deepest.is_some_and(|(_, is_bound)| is_bound)
}

/// A path of mountinfo, which has blanks, tabs, line feeds and backslashes as octal numbers.
fn unescaped(point: &str) -> PathBuf {
    let known = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let path = known.iter().fold(point.to_owned(), |path, (number, byte)| {
        path.replace(number, byte)
    });
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_that_let_users_load_bpf_are_warned_of() {
        let (works, told) = bpf_of_users(Some("0"));
        assert!(!works && told.contains("set it to 2"), "{told}");
        for value in [Some("1"), Some("2"), None] {
            assert!(bpf_of_users(value).0, "{value:?}");
        }
    }

    #[test]
    fn a_kernels_version_is_that_of_its_source() {
        for (release, build, expected) in [
            (
                "6.1.0-40-amd64",
                "#1 SMP PREEMPT_DYNAMIC Debian 6.1.153-1 (2025-09-20)",
                (6, 1, 153),
            ),
            (
                "6.12.95+deb13-amd64",
                "#1 SMP PREEMPT_DYNAMIC Debian 6.12.95-1 (2026-10-01)",
                (6, 12, 95),
            ),
            ("6.18.2", "#1 SMP", (6, 18, 2)),
            ("7.0-rc1", "#1 SMP", (7, 0, 0)),
        ] {
            assert_eq!(version(release, build), Some(expected), "{release}");
        }
        assert_eq!(version("other", "#1"), None);
    }

    #[test]
    fn a_hole_is_that_of_versions_before_its_mending() {
        let [keyring, bind] = &HOLES;
        for (version, has_keyring, has_bind) in [
            ((6, 1, 102), true, true),
            ((6, 1, 103), false, true),
            ((6, 5, 200), true, true),
            ((6, 12, 95), false, true),
            ((6, 18, 1), false, true),
            ((6, 18, 2), false, false),
            ((7, 0, 0), false, false),
        ] {
            let found = (keyring.has(version), bind.has(version));
            assert_eq!(found, (has_keyring, has_bind), "{version:?}");
        }
    }

    #[test]
    fn a_hole_of_bind_mounts_counts_where_files_names_one() {
        let mounts = "27 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      28 27 8:2 / /srv rw - ext4 /dev/sda2 rw\n\
                      29 27 8:1 /data/mail /srv/my\\040mail rw - ext4 /dev/sda1 rw\n\
                      30 27 0:40 /@home /home rw - btrfs /dev/sda3 rw\n";
        let told = |version, path: &str| holes(version, &[path.into()].into(), mounts);
        let (works, text) = told((6, 12, 95), "/srv/my mail/inbox");
        assert!(!works, "{text}");
        assert!(
            text.contains("CVE-2025-68736") && text.contains("/srv/my mail/inbox"),
            "{text}"
        );
        for path in ["/srv", "/srv/other", "/home/alice", "/etc"] {
            let (works, text) = told((6, 12, 95), path);
            assert!(
                works && text.contains("names nothing inside one"),
                "{path}: {text}"
            );
        }
        // A kernel where it is mended; then a hole that every service with `files` has.
        let (works, text) = told((6, 18, 2), "/srv/my mail/inbox");
        assert!(works && text.contains("has none"), "{text}");
        let (works, text) = told((6, 1, 102), "/srv");
        assert!(!works && text.contains("CVE-2024-42318"), "{text}");
    }
}
