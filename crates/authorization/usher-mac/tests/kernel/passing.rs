//! Ways around the checks of reading and writing, with the modules of levels: commands of devices and file
//! systems, families of sockets, io_uring after fork(2), and pins; and what a process does to itself. Each
//! refusal has a twin that is permitted.

use super::*;

/// A process that may lower itself.
const TEN: &str = "biba/10(low-10)";

/// A loop device, which is taken away at the end.
struct Loop(String);

impl Loop {
    fn of(image: &Path) -> Self {
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--read-only"]).arg(image);
        let made = losetup.output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Self(String::from_utf8(made.stdout).unwrap().trim().to_owned())
    }

    /// A device without an image.
    fn empty() -> String {
        let found = Command::new("losetup").arg("--find").output().unwrap();
        assert!(found.status.success(), "{found:?}");
        String::from_utf8(found.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let ended = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(std::thread::panicking() || ended.unwrap().success());
    }
}

// Threat model: M129
#[test]
fn a_process_with_a_level_types_into_no_terminal() {
    let Some(mut world) = World::new("terminals", 83) else {
        return;
    };
    let types = |element: &str| format!("serve:{element}:0:types");
    let without = ["none"].map(types);
    expect(&without.map(|act| (act, "ok")));
    for name in ["biba", "lomac", "mls"] {
        let module = Module::named(name).unwrap();
        world.framework().load(&module).unwrap();
    }
    expect(&[
        (types("biba/low"), "EACCES"),
        (types(TEN), "EACCES"),
        (types("lomac/low"), "EACCES"),
        (types("mls/low"), "EACCES"),
        (types("mls/5"), "EACCES"),
        (types("biba/high"), "ok"),
        (types("lomac/high"), "ok"),
        (types("biba/equal"), "ok"),
        (types("mls/equal"), "ok"),
        (types("none"), "ok"),
    ]);
}

// Threat model: M74
#[test]
fn a_descriptor_open_to_read_changes_nothing_above() {
    let Some(mut world) = World::new("commands", 83) else {
        return;
    };
    let user = world.user;
    let loaded = Command::new("modprobe").arg("loop").status();
    assert!(loaded.unwrap().success());
    let images = ["one", "other"].map(|name| {
        let image = world.path(name);
        fs::write(&image, vec![0; 1 << 20]).unwrap();
        image.display().to_string()
    });
    let device = Loop::of(Path::new(&images[0]));
    let empty = Loop::empty();
    let mounted = world.mount_multilabel();
    for name in ["biba", "lomac", "mls"] {
        let module = Module::named(name).unwrap();
        world.framework().load(&module).unwrap();
    }
    set_label(&mounted, "biba/equal,lomac/equal,mls/equal");
    let path = |name: &str| mounted.join(name).display().to_string();
    for (name, label) in [
        ("high", "biba/high,lomac/high,mls/9"),
        ("ten", "biba/10,lomac/10,mls/5"),
        ("low", "biba/low,lomac/low,mls/low"),
    ] {
        let file = mounted.join(name);
        fs::write(&file, "text").unwrap();
        chown(&file, Some(user), Some(user)).unwrap();
        set_label(&file, label);
    }
    let by = |element: &str, rest: &str| format!("serve:{element}:0:control:{rest}");
    let change = |element: &str, image: usize| {
        by(
            element,
            &format!("{}:loop_change:{}", device.0, images[image]),
        )
    };
    let on = |element: &str, command: &str| by(element, &format!("{}:{command}", device.0));
    let flags =
        |element: &str, name: &str| format!("serve:{element}:{user}:control:{}:flags", path(name));
    expect(&[
        // A file system mounted from the device would come from another image.
        (change("biba/low", 1), "EACCES"),
        (change("biba/10", 1), "EACCES"),
        (change("lomac/low", 1), "EACCES"),
        (change("mls/5", 1), "EACCES"),
        (change("biba/high", 1), "ok"),
        (change("lomac/high", 0), "ok"),
        (change("mls/low", 1), "ok"),
        (change("none", 0), "ok"),
        (on("biba/low", "loop_clear"), "EACCES"),
        (on("lomac/low", "loop_clear"), "EACCES"),
        (
            by("biba/low", &format!("{empty}:loop_set:{}", images[1])),
            "EACCES",
        ),
        (by("biba/low", "/dev/loop-control:loop_free"), "EACCES"),
        (by("mls/5", "/dev/loop-control:loop_free"), "EACCES"),
        (by("biba/high", "/dev/loop-control:loop_free"), "ok"),
        (by("mls/low", "/dev/loop-control:loop_free"), "ok"),
        // The device's attributes are read as those of files.
        (on("biba/low", "size"), "ok"),
        (on("biba/low", "loop_status"), "ok"),
        (on("lomac/low", "size"), "ok"),
        (on("mls/5", "size"), "ok"),
        // Attributes of files.
        (flags(TEN, "high"), "EACCES"),
        (flags(TEN, "ten"), "ok"),
        (flags("lomac/10", "high"), "EACCES"),
        (flags("lomac/10", "ten"), "ok"),
        (flags("mls/5", "low"), "EACCES"),
        (flags("mls/5", "ten"), "ok"),
        (flags("none", "high"), "ok"),
    ]);
    drop(device);
    let ended = Command::new("umount").arg("-l").arg(&mounted).status();
    assert!(ended.unwrap().success());
}

// Threat model: M73
#[test]
fn sockets_of_undecided_families_take_a_permission() {
    let Some(mut world) = World::new("families", 84) else {
        return;
    };
    for name in ["biba", "mls", "lomac"] {
        let module = Module::named(name).unwrap();
        world.framework().load(&module).unwrap();
    }
    let makes = |element: &str, of: &str| format!("serve:{element}:0:makes_socket:{of}");
    // AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK: a datagram each.
    for family in ["1:2", "2:2", "10:2", "16:2"] {
        expect(&[
            (makes("biba/low", family), "ok"),
            (makes("mls/5", family), "ok"),
            (makes("lomac/low", family), "ok"),
        ]);
    }
    // Packet sockets, RDS, TIPC, AF_ALG, vsock and SMC, which is a protocol of IP, too.
    let undecided = ["17:3", "21:5", "30:2", "38:5", "40:1", "43:1", "2:1:256"];
    for family in undecided {
        expect(&[
            (makes("biba/high", family), "EACCES"),
            (makes("mls/5", family), "EACCES"),
            (makes("lomac/high", family), "EACCES"),
            (makes("biba/equal", family), "ok"),
            (makes("none", family), "ok"),
        ]);
    }
    let permitted = BTreeSet::from([17, 40, 43]);
    world.framework().permit_families(&permitted).unwrap();
    for (family, answer) in undecided
        .into_iter()
        .zip(["ok", "EACCES", "EACCES", "EACCES", "ok", "ok", "ok"])
    {
        expect(&[(makes("biba/high", family), answer)]);
    }
    // A TCP socket that becomes one of SMC.
    let becomes = |element: &str, of: &str| format!("serve:{element}:0:sets_protocol:{of}");
    expect(&[(becomes("biba/low", "smc:new"), "ok")]);
    world.framework().permit_families(&BTreeSet::new()).unwrap();
    expect(&[
        (makes("biba/high", "40:1"), "EACCES"),
        (becomes("biba/low", "smc:new"), "EACCES"),
        (becomes("mls/5", "smc:new"), "EACCES"),
        (becomes("lomac/high", "smc:new"), "EACCES"),
        (becomes("biba/equal", "smc:new"), "ok"),
        (becomes("none", "smc:new"), "ok"),
        // kTLS takes one that is connected.
        (becomes("biba/low", "tls:connected"), "ok"),
        (becomes("mls/5", "tls:connected"), "ok"),
        (becomes("lomac/high", "tls:connected"), "ok"),
    ]);
}

// Threat model: M51
#[test]
fn a_process_with_a_ring_keeps_its_label() {
    let Some(mut world) = World::new("rings", 85) else {
        return;
    };
    let user = world.user;
    let text = world.file("text", user).display().to_string();
    let biba = Module::named("biba").unwrap();
    world.framework().load(&biba).unwrap();
    let by = |act: &str| format!("serve:{TEN}:{user}:{act}");
    expect(&[
        (by(&format!("reaches_by_ring:biba/low:{text}")), "EPERM"),
        // If the child has the parent's label, using the ring is the parent's own act.
        (by(&format!("reaches_by_ring:{TEN}:{text}")), "EXDEV"),
        (by("gets:biba/low:ring"), "EPERM"),
        (by("gets:biba/low:pipe"), "ok"),
        (by("label:biba/low"), "ok"),
        (by("executes_with_ring:biba/low:yes"), "EPERM"),
        (by("executes_with_ring:biba/low:no"), "ok"),
        (by(&format!("executes_with_ring:{TEN}:yes")), "ok"),
    ]);
}

// Threat model: M76
#[test]
fn a_process_with_a_level_has_what_is_its_own() {
    let Some(mut world) = World::new("own", 86) else {
        return;
    };
    let user = world.user;
    for name in ["biba", "mls", "lomac"] {
        let module = Module::named(name).unwrap();
        world.framework().load(&module).unwrap();
    }
    for element in ["biba/low", "mls/5", "lomac/low", "biba/high", "none"] {
        let by = |act: &str| format!("serve:{element}:{user}:{act}");
        expect(&[
            (by("observes_processes"), "ok"),
            (by("names_thread"), "ok"),
            (format!("uses_queue:{element}:{element}:reads"), "ok"),
            (format!("uses_queue:{element}:{element}:writes"), "ok"),
            (format!("uses_queue:{element}:{element}:removes"), "ok"),
        ]);
    }
    let names = |element: &str| format!("serve:{element}:{user}:names_child");
    let queue =
        |maker: &str, element: &str, way: &str| format!("uses_queue:{maker}:{element}:{way}");
    expect(&[
        // The name of another process is as all files of /proc.
        (names("biba/low"), "EACCES"),
        (names("mls/5"), "EACCES"),
        (names("biba/high"), "ok"),
        (names("none"), "ok"),
        // The directory of queues is everybody's, and the queues are not.
        (queue("biba/low", "biba/high", "reads"), "EACCES"),
        (queue("biba/low", "biba/high", "writes"), "ok"),
        (queue("biba/high", "biba/low", "writes"), "EACCES"),
        (queue("biba/high", "biba/low", "reads"), "ok"),
        (queue("biba/high", "biba/low", "removes"), "EACCES"),
        (queue("mls/9", "mls/5", "reads"), "EACCES"),
        (queue("mls/9", "mls/5", "writes"), "ok"),
        (queue("lomac/high", "lomac/low", "writes"), "EACCES"),
    ]);
}

// Threat model: M75
#[test]
fn pins_are_for_those_at_their_level() {
    let Some(mut world) = World::new("pins", 87) else {
        return;
    };
    let biba = Module::named("biba").unwrap();
    world.framework().load(&biba).unwrap();
    let folder = Path::new("/sys/fs/bpf/test_passing");
    let other = Path::new("/sys/fs/bpf/test_passing_other");
    fs::create_dir(folder).unwrap();
    let by = |element: &str, from: &Path, to: &Path| {
        format!("serve:{element}:0:{}", onto("rename", from, to))
    };
    expect(&[
        (by("biba/low", folder, other), "EACCES"),
        (by("biba/high", folder, other), "ok"),
        (by("none", other, folder), "ok"),
        (
            format!("serve:biba/low:0:{}", on("rmdir", folder)),
            "EACCES",
        ),
        (format!("serve:biba/low:0:{}", on("stat", folder)), "ok"),
        (format!("serve:none:0:{}", on("rmdir", folder)), "ok"),
    ]);
}
