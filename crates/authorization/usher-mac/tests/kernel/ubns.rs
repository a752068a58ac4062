//! The module `ubns` in a kernel: each refusal with a twin that is permitted.

use super::*;

use usher_mac::ubns::{DestinationRange, ServiceSettings};

/// `imap` of users, which connects to port 25 of this host; `notes` of an account, which connects nowhere;
/// two of another account.
fn services(account: u32, shared: u32) -> Settings {
    let here = "127.0.0.1".parse().unwrap();
    let service = |name: &str, port, account, connect: Option<Vec<_>>| ServiceSettings {
        name: name.into(),
        port,
        account,
        connect,
    };
    let to = DestinationRange {
        first: here,
        last: here,
        ports: (25, 25),
    };
    Settings::Ubns(vec![
        service("imap", 1143, None, Some(vec![to])),
        service("notes", 1808, Some(account), Some(Vec::new())),
        service("one", 1809, Some(shared), None),
        service("two", 1810, Some(shared), Some(Vec::new())),
    ])
}

// Threat model: M22, M23
#[test]
fn a_service_is_decided_about_by_account_and_element() {
    let Some(mut world) = World::new("ubns", 60) else {
        return;
    };
    let (account, user, shared) = (world.user, world.twin, 3990);
    let settings = services(account, shared);
    world.framework().load(&Module::with(settings)).unwrap();
    let by = |element: &str, uid: u32, act: &str| format!("serve:{element}:{uid}:{act}");
    let imap = |act: &str| by("ubns/imap", user, act);
    expect(&[
        // A service's port is its account's.
        (by("none", user, "bind:1808"), "EACCES"),
        (by("none", user, "bind_all:1808"), "EACCES"),
        (by("none", user, "bind:1143"), "EACCES"),
        (imap("bind:1143"), "EACCES"),
        (by("none", account, "bind:1143"), "EACCES"),
        (by("none", account, "bind:1808"), "ok"),
        (by("none", account, "bind_all:1808"), "ok"),
        (by("none", 0, "bind:1143"), "ok"),
        (by("none", user, "bind:1807"), "ok"),
        (by("none", user, "bind_udp:1808"), "ok"),
        // A service's processes connect where the service may.
        (imap("connect:26"), "EACCES"),
        (imap("connect_mapped:26"), "EACCES"),
        (imap("fast_open:26"), "EACCES"),
        (imap("send_to:26"), "EACCES"),
        (imap("udp_lite"), "EACCES"),
        (imap("in_child:connect:26"), "EACCES"),
        (imap("executes_connect:26"), "EACCES"),
        (by("ubns/gone", user, "connect:25"), "EACCES"),
        (imap("connect:25"), "ok"),
        (imap("connect_mapped:25"), "ok"),
        (imap("fast_open:25"), "ok"),
        (imap("send_to:25"), "ok"),
        (imap("executes_connect:25"), "ok"),
        (by("none", user, "connect:26"), "ok"),
        (by("none", user, "udp_lite"), "ok"),
        (by("ubns/one", user, "connect:26"), "ok"),
        // A program of an account that serves only one service gets the service's element, and is held to its
        // destinations once it has become its user.
        (format!("executes_as:{account}:{user}:25"), "EACCES"),
        (format!("executes_as:{account}:{account}:25"), "ok"),
        (format!("executes_as:{shared}:{user}:25"), "ok"),
        // Elements are for life, and not for users to choose.
        (imap("label:ubns/one"), "EPERM"),
        (imap("label_at_exec:ubns/one"), "EPERM"),
        (by("none", user, "label:ubns/imap"), "EPERM"),
        (by("ubns/imap", 0, "label:ubns/one"), "EPERM"),
        (by("none", 0, "label:ubns/-"), "EPERM"),
        (by("none", 0, "label:ubns/one"), "ok"),
        // Sockets and processes of a service.
        (format!("accepts:ubns/imap:ubns/one:{user}"), "EACCES"),
        (format!("accepts:ubns/imap:none:{user}"), "EACCES"),
        (format!("listens:ubns/imap:none:{user}"), "EACCES"),
        (format!("accepts:ubns/imap:ubns/imap:{user}"), "ok"),
        (format!("listens:ubns/imap:ubns/imap:{user}"), "ok"),
        (format!("accepts:none:ubns/imap:{user}"), "ok"),
        (format!("traces:ubns/imap:none:{user}"), "EACCES"),
        (format!("traces:none:ubns/imap:{user}"), "EACCES"),
        (format!("traces:ubns/imap:ubns/one:{user}"), "EACCES"),
        (format!("traces:ubns/imap:ubns/imap:{user}"), "ok"),
        (format!("traces:none:none:{user}"), "ok"),
    ]);
    let refusals = world.framework().modules().unwrap()[0].refusals.clone();
    let count = |point: EntryPoint| {
        let found = refusals.iter().find(|(refused, _)| *refused == point);
        found.map_or(0, |(_, count)| *count)
    };
    assert_eq!(count(EntryPoint::SocketBind), 5, "{refusals:?}");
    assert_eq!(count(EntryPoint::SocketAccept), 2, "{refusals:?}");
    // Other services come into force at once, also for the ports.
    let none = Settings::Ubns(Vec::new());
    world.framework().configure("ubns", &none).unwrap();
    expect(&[
        (by("none", user, "bind:1143"), "ok"),
        (imap("connect:25"), "EACCES"),
    ]);
}

// Threat model: M23
#[test]
fn files_of_a_service_are_opened_by_its_processes() {
    let Some(mut world) = World::new("ubns_files", 61) else {
        return;
    };
    let user = world.user;
    let mounted = world.mount_multilabel();
    let settings = services(user + 1, user + 1);
    world.framework().load(&Module::with(settings)).unwrap();
    let (mail, shared) = (mounted.join("mail"), mounted.join("shared"));
    let path = |folder: &Path, name: &str| folder.join(name).display().to_string();
    let label = |path: &Path, name: &str| set_label(path, &format!("ubns/{name}"));
    label(&mounted, "-");
    for folder in [&mail, &shared] {
        fs::create_dir(folder).unwrap();
        fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
        chown(folder, Some(user), Some(user)).unwrap();
    }
    label(&mail, "imap");
    let by = |element: &str, act: &str, folder: &Path, name: &str| {
        format!("serve:{element}:{user}:{act}:{}", path(folder, name))
    };
    expect(&[
        (by("none", "create", &mail, "one"), "EACCES"),
        (by("ubns/one", "create", &mail, "one"), "EACCES"),
        (by("ubns/imap", "create", &mail, "one"), "ok"),
        (by("none", "read", &mail, "one"), "EACCES"),
        (by("none", "chmod", &mail, "one"), "EACCES"),
        (by("none", "set_acl", &mail, "one"), "EACCES"),
        (by("none", "truncate", &mail, "one"), "EACCES"),
        (by("none", "unlink", &mail, "one"), "EACCES"),
        (by("none", "folder_in", &mail, ""), "EACCES"),
        (by("ubns/one", "read", &mail, "one"), "EACCES"),
        (by("ubns/imap", "read", &mail, "one"), "ok"),
        (by("ubns/imap", "chmod", &mail, "one"), "ok"),
        (by("ubns/imap", "set_acl", &mail, "one"), "ok"),
        (by("none", "remove_acl", &mail, "one"), "EACCES"),
        (by("ubns/imap", "remove_acl", &mail, "one"), "ok"),
        // Root may: CAP_SYS_ADMIN, by which labels are set, is enough.
        (format!("read:{}", path(&mail, "one")), "ok"),
        (by("ubns/imap", "unlink", &mail, "one"), "ok"),
        // The element of a directory that is removed decides as well.
        (by("none", "rmdir", &mail, ""), "EACCES"),
        (by("ubns/imap", "rmdir", &mail, ""), "ok"),
        // A service's new file belongs to no service if its folder belongs to none.
        (by("ubns/imap", "create", &shared, "two"), "ok"),
        (by("none", "read", &shared, "two"), "ok"),
        (by("ubns/one", "read", &shared, "two"), "ok"),
        (by("none", "unlink", &shared, "two"), "ok"),
    ]);
    let ended = Command::new("umount").arg("-l").arg(&mounted).status();
    assert!(ended.unwrap().success());
}
