//! The guard by owner: a daemon touches only the objects of its own role.

mod guard;
mod ownership;

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use guard::*;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys};
use ownership::*;
use usher_bpf::Objects;
use usher_bpf::guard::{Claims, Role, claim, declare};
use usher_kernel::ownership::{Ownership, Reason};
use usher_kernel::ticket::{Limits, Tickets};
use usher_kernel::{KernelError, cgroup};

const SIGNERS: &str = "/mnt/bpf/signer";
const PROTECTORS: &str = "/mnt/bpf/protector";
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
        class_bits: 0,
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

/// A table like one of the protector's, and its id.
fn table() -> (MapHandle, u32) {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let map = MapHandle::create(MapType::Array, Some("protectors"), 4, 4, 1, &options).unwrap();
    let mut objects = Objects::default();
    let descriptor = map.as_fd().try_clone_to_owned().unwrap();
    objects.add_descriptor(&descriptor).unwrap();
    (map, objects.maps.pop_first().unwrap())
}

/// A pin, and the commands that open these objects by their ids, as text.
fn told(pin: &Path, objects: &Objects) -> String {
    let one = |command: i64| move |id: &u32| format!("{command}:{id}");
    let all = objects.maps.iter().map(one(MAP_BY_ID));
    let all = all.chain(objects.programs.iter().map(one(PROGRAM_BY_ID)));
    let all = all.chain(objects.links.iter().map(one(LINK_BY_ID)));
    let all = std::iter::once(pin.display().to_string()).chain(all);
    all.collect::<Vec<_>>().join(" ")
}

/// Opens the objects by their ids, opens a pin, and lists its folder.
fn attempts(told: &str) -> Vec<(&'static str, io::Result<()>)> {
    let mut told = told.split(' ');
    let pin = Path::new(told.next().unwrap());
    let by_id = told.map(|one| {
        let (command, id) = one.split_once(':').unwrap();
        let opened = bpf(command.parse().unwrap(), id.parse().unwrap());
        let closed = opened.and_then(|(descriptor, _)| call(libc::SYS_close, &[descriptor]));
        ("open by id", closed.map(drop))
    });
    let mut all: Vec<_> = by_id.collect();
    let folder = pin.parent().unwrap();
    all.push(("open a pin", open_pin(pin)));
    all.push(("list", std::fs::read_dir(folder).map(drop)));
    all.push(("make a folder", std::fs::create_dir(folder.join("new"))));
    all.push(("remove a folder", std::fs::remove_dir(folder.join("new"))));
    all
}

/// Another process of the daemons' program, which gets the list of a daemon's objects.
fn another(part: &str, told: &str) -> Command {
    let mut command = another_keeper(part);
    command.env("USHER_TEST_OBJECTS", told);
    command
}

/// This is no test: the tests start it as a second process of the daemons' program.
#[test]
fn in_the_part_of_another_keeper() {
    let Ok(part) = std::env::var("USHER_TEST_KEEPER") else {
        return;
    };
    let others = std::env::var("USHER_TEST_OBJECTS").unwrap_or_default();
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
            let own = told(&Path::new(SIGNERS).join("gates"), tickets.objects());
            permitted(&attempts(&own));
            in_child(|| refused(&attempts(&own)));
            finds_it_so(another("keeper", &own));
            finds_it_so(another("another protector", &own));
            finds_it_so(another("nothing", &own));
            finds_it_so(another("release", &own));
            finds_it_so(elsewhere(&own));
            // The owner itself can detach the link.
            let link = tickets.objects().links.first().copied().unwrap();
            let (descriptor, _) = bpf(LINK_BY_ID, link).unwrap();
            bpf(DETACH, u32::try_from(descriptor).unwrap()).unwrap();
        }
        "protector" => {
            assert!(declare(&[Role::Protector]).unwrap());
            assert!(!declare(&[Role::Signer]).unwrap());
            refused(&touch(&keepers));
            let folder = Path::new(PROTECTORS);
            std::fs::create_dir(folder).unwrap();
            let (mut pinned, lasting) = table();
            pinned.pin(folder.join("table")).unwrap();
            let mut objects = Objects::default();
            objects.collect(folder).unwrap();
            assert!(objects.maps.contains(&lasting));
            let (_former, replaced) = table();
            let (_fresh, fresh) = table();
            let mut claims = Claims::default();
            let with = |id| {
                let mut objects = objects.clone();
                objects.maps.insert(id);
                objects
            };
            assert!(claims.renew(&with(replaced)).unwrap());
            in_child(|| expect_refused(bpf(MAP_BY_ID, replaced)));
            in_child(|| {
                bpf(MAP_BY_ID, fresh).unwrap();
            });
            // The object in the place of the replaced one is guarded, and the former one has no owner.
            assert!(claims.renew(&with(fresh)).unwrap());
            in_child(|| {
                bpf(MAP_BY_ID, replaced).unwrap();
            });
            let own = told(&folder.join("table"), &with(fresh));
            permitted(&attempts(&own));
            in_child(|| refused(&attempts(&own)));
            finds_it_so(another("keeper", &own));
            finds_it_so(another("another signer", &own));
            finds_it_so(another("nothing", &own));
            finds_it_so(another("another protector's", &own));
            finds_it_so(another("release", &own));
            // The guard never runs out of room, however often a table is replaced.
            for id in 1_000_000..1_000_600 {
                assert!(claims.renew(&with(id)).unwrap(), "{id}");
            }
            in_child(|| expect_refused(bpf(MAP_BY_ID, lasting)));
        }
        "another protector" | "another signer" => {
            let role = match part.as_str() {
                "another signer" => Role::Signer,
                _ => Role::Protector,
            };
            assert!(declare(&[role]).unwrap());
            refused(&touch(&keepers));
            refused(&attempts(&others));
            let maps = format!("{MAP_BY_ID}:");
            let mut claims = Claims::default();
            for id in others.split(' ').filter_map(|one| one.strip_prefix(&maps)) {
                let mut objects = Objects::default();
                objects.maps.insert(id.parse().unwrap());
                let claimed = claims.renew(&objects);
                assert!(matches!(claimed, Err(KernelError::NotOwned)), "{claimed:?}");
            }
            // Giving up objects that this daemon does not have ends no claim of their owner.
            assert!(claims.renew(&Objects::default()).unwrap());
            refused(&attempts(&others));
        }
        "another protector's" => {
            assert!(declare(&[Role::Protector]).unwrap());
            refused(&touch(&keepers));
            permitted(&attempts(&others));
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
            // This daemon can claim neither the folder above the keeper's nor more than half a table.
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
            refused(&attempts(&others));
            let pin = others.split(' ').next().unwrap();
            let folder = Path::new(pin).parent().unwrap();
            expect_refused(std::fs::remove_dir(folder));
        }
        "release" => {
            assert!(declare(&[Role::Keeper, Role::Signer, Role::Protector]).unwrap());
            permitted(&touch(&keepers));
            permitted(&attempts(&others));
        }
        "nothing" => {
            // This daemon is refused before its declaration and afterwards.
            refused(&touch(&keepers));
            refused(&attempts(&others));
            assert!(declare(&[]).unwrap());
            refused(&touch(&keepers));
            refused(&attempts(&others));
            for role in [Role::Keeper, Role::Signer, Role::Protector] {
                assert!(!declare(&[role]).unwrap(), "{role:?}");
            }
        }
        "elsewhere" => {
            assert!(!declare(&[Role::Keeper]).unwrap());
            assert!(!declare(&[Role::Keeper, Role::Signer]).unwrap());
            assert!(declare(&[Role::Signer]).unwrap());
            refused(&touch(&keepers));
            permitted(&attempts(&others));
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
        .env("USHER_TEST_OBJECTS", told);
    command
}

fn guarded(pins: &Path) -> Ownership {
    let ownership = load(pins);
    ownership
        .guard(Path::new(USHER), &Objects::default())
        .unwrap();
    ownership
}

// Threat model: A128
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

// Threat model: P13
#[test]
fn the_protectors_objects_are_the_protectors_alone() {
    process_of_its_own("the_protectors_objects_are_the_protectors_alone", |pins| {
        let ownership = guarded(pins);
        finds_it_so(another("protector", ""));
        for reason in [Reason::Map, Reason::Pins] {
            assert!(ownership.refusals().unwrap().of(reason) > 0, "{reason:?}");
        }
        // The objects stay the protector's after its end.
        in_child(|| expect_refused(open_pin(&Path::new(PROTECTORS).join("table"))));
        permitted(&touch(pins));
    });
}

// Threat model: A128
#[test]
fn no_daemon_claims_another_ones_objects() {
    process_of_its_own("no_daemon_claims_another_ones_objects", |pins| {
        let ownership = guarded(pins);
        finds_it_so(another("claims", ""));
        ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap();
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
