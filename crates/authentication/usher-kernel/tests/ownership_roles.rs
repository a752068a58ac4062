//! The guard by owner: a daemon touches only the objects of its own role.

mod guard;
mod ownership;

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use guard::*;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use ownership::*;
use usher_bpf::Objects;
use usher_bpf::guard::{Role, claim, declare};
use usher_kernel::ownership::{Ownership, Reason};
use usher_kernel::ticket::{Limits, Tickets};
use usher_kernel::{KernelError, cgroup};

const SIGNERS: &str = "/mnt/bpf/signer";
/// Commands of bpf(2).
const OPEN_PIN: i64 = 7;
const DETACH: i64 = 34;
/// The signer's value in the tables of objects (enum usher_mark).
const OWNED_BY_SIGNER: u32 = 2;

fn open_tickets() -> Tickets {
    let limits = Limits {
        tickets: 8,
        blocks: 8,
        destinations: 8,
        gates: 8,
        listed: 8,
    };
    let tickets = Tickets::open(&cgroup::mount().unwrap(), Some(Path::new(SIGNERS)), &limits);
    let tickets = tickets.unwrap();
    tickets.holding().gates().lasting().unwrap();
    tickets
}

fn open_pin(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let attributes = [path.as_ptr() as u64, 0];
    let address = attributes.as_ptr() as i64;
    let descriptor = call(libc::SYS_bpf, &[OPEN_PIN, address, 16])?;
    call(libc::SYS_close, &[descriptor]).map(drop)
}

/// The commands that open these objects by their ids, as text.
fn told(objects: &Objects) -> String {
    let one = |command: i64| move |id: &u32| format!("{command}:{id}");
    let all = objects.maps.iter().map(one(MAP_BY_ID));
    let all = all.chain(objects.programs.iter().map(one(PROGRAM_BY_ID)));
    let all = all.chain(objects.links.iter().map(one(LINK_BY_ID)));
    all.collect::<Vec<_>>().join(" ")
}

/// Opens the objects by their ids, opens a pin, and lists the folder.
fn attempts(told: &str) -> Vec<(&'static str, io::Result<()>)> {
    let by_id = told.split(' ').map(|one| {
        let (command, id) = one.split_once(':').unwrap();
        let opened = bpf(command.parse().unwrap(), id.parse().unwrap());
        let closed = opened.and_then(|(descriptor, _)| call(libc::SYS_close, &[descriptor]));
        ("open by id", closed.map(drop))
    });
    let mut all: Vec<_> = by_id.collect();
    let folder = Path::new(SIGNERS);
    all.push(("open a pin", open_pin(&folder.join("gates"))));
    all.push(("list", std::fs::read_dir(folder).map(drop)));
    all.push(("make a folder", std::fs::create_dir(folder.join("new"))));
    all.push(("remove a folder", std::fs::remove_dir(folder.join("new"))));
    all
}

/// Another process of the daemons' program, which gets the list of the signer's objects.
fn another(part: &str, told: &str) -> Command {
    let mut command = another_keeper(part);
    command.env("USHER_TEST_SIGNERS", told);
    command
}

/// Not a test by itself: the tests start it as a second process of the daemons' program.
#[test]
fn in_the_part_of_another_keeper() {
    let Ok(part) = std::env::var("USHER_TEST_KEEPER") else {
        return;
    };
    let signers = std::env::var("USHER_TEST_SIGNERS").unwrap_or_default();
    let keepers = Path::new(USHER).join("ownership");
    match part.as_str() {
        "signer" => {
            assert!(declare(&[Role::Signer]).unwrap());
            assert!(!declare(&[Role::Keeper]).unwrap());
            let before = reach_all();
            for (kind, (_, refused)) in ["maps", "programs", "links"].iter().zip(before) {
                assert!(refused > 10, "{kind}: {before:?}");
            }
            refused(&touch(&keepers));
            expect_refused(open_pin(&keepers.join("settled")));
            expect_refused(open_pin(&keepers.join("link_guard_map")));

            let tickets = open_tickets();
            assert!(claim(tickets.objects()).unwrap());
            let own = told(tickets.objects());
            permitted(&attempts(&own));
            in_child(|| refused(&attempts(&own)));
            finds_it_so(another("keeper", &own));
            finds_it_so(another("nothing", &own));
            finds_it_so(another("both", &own));
            finds_it_so(elsewhere(&own));
            // The link can be detached once its owner says so.
            let link = tickets.objects().links.first().copied().unwrap();
            let (descriptor, _) = bpf(LINK_BY_ID, link).unwrap();
            bpf(DETACH, u32::try_from(descriptor).unwrap()).unwrap();
        }
        "claims" => {
            assert!(declare(&[Role::Signer]).unwrap());
            let mut id = 0;
            let mut tried = 0;
            while let Ok((_, next)) = bpf(NEXT_MAP, id) {
                id = next;
                if bpf(MAP_BY_ID, id).is_err() {
                    let mut objects = Objects::default();
                    objects.maps.insert(id);
                    let claimed = claim(&objects);
                    assert!(matches!(claimed, Err(KernelError::NotOwned)), "{claimed:?}");
                    expect_refused(bpf(MAP_BY_ID, id));
                    tried += 1;
                }
            }
            assert!(tried > 10, "{tried}");
            // It can claim neither the folder above the keeper's nor more than half a table.
            let mut above = Objects::default();
            let parent = std::fs::metadata(BPF_FS).unwrap();
            above
                .folders
                .push((std::os::unix::fs::MetadataExt::ino(&parent), 0));
            assert!(matches!(claim(&above), Err(KernelError::NotOwned)));
            let mut many = Objects::default();
            many.maps.extend(1_000_000..1_000_513);
            assert!(matches!(claim(&many), Err(KernelError::NotOwned)));
            many.maps.pop_last();
            assert!(claim(&many).unwrap());
        }
        "signer again" => {
            assert!(declare(&[Role::Signer]).unwrap());
            let tickets = open_tickets();
            assert!(claim(tickets.objects()).unwrap());
        }
        "keeper" => {
            assert!(declare(&[Role::Keeper]).unwrap());
            permitted(&touch(&keepers));
            open_pin(&keepers.join("settled")).unwrap();
            refused(&attempts(&signers));
            expect_refused(std::fs::remove_dir(SIGNERS));
        }
        "both" => {
            assert!(declare(&[Role::Keeper, Role::Signer]).unwrap());
            permitted(&touch(&keepers));
            permitted(&attempts(&signers));
        }
        "nothing" => {
            // Neither before its declaration nor afterwards.
            refused(&touch(&keepers));
            refused(&attempts(&signers));
            assert!(declare(&[]).unwrap());
            refused(&touch(&keepers));
            refused(&attempts(&signers));
            assert!(!declare(&[Role::Keeper]).unwrap());
            assert!(!declare(&[Role::Signer]).unwrap());
        }
        "elsewhere" => {
            assert!(!declare(&[Role::Keeper]).unwrap());
            assert!(!declare(&[Role::Keeper, Role::Signer]).unwrap());
            assert!(declare(&[Role::Signer]).unwrap());
            refused(&touch(&keepers));
            permitted(&attempts(&signers));
        }
        other => panic!("{other}"),
    }
}

/// A daemon with its own mounts.
fn elsewhere(told: &str) -> Command {
    let daemon = another("elsewhere", told);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "unchanged"])
        .arg(daemon.get_program())
        .args(daemon.get_args())
        .env("USHER_TEST_KEEPER", "elsewhere")
        .env("USHER_TEST_SIGNERS", told);
    command
}

fn guarded(pins: &Path) -> Ownership {
    let ownership = load(pins);
    ownership.guard(Path::new(USHER), &[]).unwrap();
    ownership
}

#[test]
fn a_daemon_touches_objects_of_its_own_role_only() {
    process_of_its_own("a_daemon_touches_objects_of_its_own_role_only", |pins| {
        let ownership = guarded(pins);
        finds_it_so(another("signer", ""));
        for reason in [Reason::Map, Reason::Program, Reason::Link, Reason::Pins] {
            assert!(ownership.refusals().unwrap().of(reason) > 0, "{reason:?}");
        }
        // The keeper is not affected.
        permitted(&touch(pins));
    });
}

#[test]
fn no_daemon_claims_another_ones_objects() {
    process_of_its_own("no_daemon_claims_another_ones_objects", |pins| {
        let ownership = guarded(pins);
        finds_it_so(another("claims", ""));
        ownership.guard(Path::new(USHER), &[]).unwrap();
        permitted(&touch(pins));
    });
}

#[test]
fn what_a_former_signer_claimed_is_forgotten() {
    process_of_its_own("what_a_former_signer_claimed_is_forgotten", |pins| {
        let _ownership = guarded(pins);
        let claimed = || {
            ["own_maps", "own_programs", "own_links", "own_folders"].map(|table| {
                let table = MapHandle::from_pinned_path(pins.join(table)).unwrap();
                let owner = |key: Vec<u8>| table.lookup(&key, MapFlags::ANY).unwrap().unwrap();
                let owned = |key| u32::from(owner(key)[0]) == OWNED_BY_SIGNER;
                table.keys().map(owned).filter(|owned| *owned).count()
            })
        };
        assert_eq!(claimed(), [0; 4]);
        finds_it_so(another("signer again", ""));
        let once = claimed();
        assert!(once.iter().all(|count| *count > 0), "{once:?}");
        finds_it_so(another("signer again", ""));
        assert_eq!(claimed(), once);
    });
}
