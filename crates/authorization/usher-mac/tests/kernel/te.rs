//! The module `te` in a kernel: each refusal with a twin that is permitted.

use super::attacks::Actor;
use super::*;

use usher_mac_blocks::te::Class;

/// The module's settings from these statements.
pub(super) fn types(statements: &str) -> Settings {
    match block("te", statements) {
        ModuleSettings::Te(types) => Settings::Te(types),
        other => panic!("{other:?}"),
    }
}

/// Rules for what every process of the tests does in any domain: it runs a script, becomes a user, and looks
/// names up.
pub(super) fn base(domain: &str) -> String {
    [
        "untyped file read execute getattr",
        "untyped directory read search getattr",
        "untyped link getattr",
        "unconfined pipe read write getattr",
        "self pipe read write getattr",
        "self capability setuid setgid",
        "top directory search getattr",
    ]
    .map(|rule| format!("allow {domain} {rule};\n"))
    .concat()
}

const TYPES: &str = "type top, imapd_exec, tool_exec, admin_exec, mail, spool, inbox, log, inner;";

/// A mail server, which programs of the type `imapd_exec` begin; another server; and an administrator.
fn policy() -> String {
    let base = ["imapd", "web", "admin"].map(base).concat();
    format!(
        "domain imapd, web, admin;
         {TYPES}
         {base}
         allow imapd imapd_exec file read execute entrypoint getattr;
         allow imapd mail file read getattr;
         allow imapd inbox file create read write getattr unlink;
         allow imapd spool file read;
         allow imapd log file append getattr;
         allow imapd spool directory search add_name remove_name getattr;
         allow imapd inner directory create unlink;
         allow web imapd_exec file execute read;
         allow web tool_exec file execute read;
         allow web admin_exec file execute read;
         allow web spool file read;
         allow web spool directory search;
         allow web self socket create connect bind listen accept read write;
         allow web self ipc read write getattr setattr;
         allow imapd web socket connect;
         allow imapd self socket create connect bind listen accept;
         allow imapd self ipc read write getattr setattr;
         allow imapd web ipc read;
         allow admin imapd process signal ptrace setsched;
         allow admin web process transition;
         allow admin self socket network bind;
         allow admin self capability sys_time sys_admin dac_override fowner;
         allow admin spool directory search;
         transition unconfined imapd_exec imapd;
         transition web imapd_exec imapd;
         # Without an entry point.
         transition web admin_exec admin;
         create imapd spool file inbox;
         create imapd spool directory inner;
         relabel admin spool mail;\n"
    )
}

/// The files of the test, by name and type.
fn make_files(mounted: &Path, user: u32) {
    set_label(mounted, "te/top");
    let made = |name: &str, label: &str| {
        let path = mounted.join(name);
        chown(&path, Some(user), Some(user)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        set_label(&path, &format!("te/{label}"));
    };
    fs::create_dir(mounted.join("spool")).unwrap();
    made("spool", "spool");
    for (name, label) in [("spool/kept", "spool"), ("spool/own", "inner")] {
        fs::create_dir(mounted.join(name)).unwrap();
        made(name, label);
    }
    for (name, label) in [("mail", "mail"), ("log", "log"), ("incoming", "spool")] {
        fs::write(mounted.join(name), "text").unwrap();
        made(name, label);
    }
    for (name, program, label) in [
        ("imapd", "/bin/cat", "imapd_exec"),
        ("imapd_sleep", "/bin/sleep", "imapd_exec"),
        ("imapd_true", "/bin/true", "imapd_exec"),
        ("tool", "/bin/cat", "tool_exec"),
        ("admin", "/bin/true", "admin_exec"),
        ("log_exec", "/bin/true", "log"),
    ] {
        fs::copy(program, mounted.join(name)).unwrap();
        made(name, label);
    }
    let own = format!("{}/imapd_true", mounted.display());
    for (name, interpreter, label) in [
        ("script", "/bin/true", "imapd_exec"),
        ("own_script", &own, "imapd_exec"),
        ("tool_script", "/bin/true", "tool_exec"),
    ] {
        fs::write(mounted.join(name), format!("#!{interpreter}\n")).unwrap();
        made(name, label);
    }
}

// Threat model: M37
#[test]
fn a_domain_does_what_rules_permit_it_and_nothing_else() {
    let Some(mut world) = World::new("te", 77) else {
        return;
    };
    let user = world.user;
    let elsewhere = world.file("elsewhere", user).display().to_string();
    let mounted = world.mount_multilabel();
    let module = Module::with(types(&policy()));
    world.framework().load(&module).unwrap();
    make_files(&mounted, user);
    let path = |name: &str| mounted.join(name).display().to_string();
    let by = |domain: &str, act: &str| {
        let element = if domain == "none" {
            "none".into()
        } else {
            format!("te/{domain}")
        };
        format!("serve:{element}:{user}:{act}")
    };
    let on = |domain: &str, act: &str, name: &str| by(domain, &format!("{act}:{}", path(name)));
    let root = |domain: &str, act: &str| format!("serve:te/{domain}:0:{act}");
    let runs = |domain: &str, program: &str, file: &str| {
        by(
            domain,
            &format!("after_exec:{}:{}", path(program), path(file)),
        )
    };
    let mut actor = Actor::start(0);
    actor.does_all(&[
        (on("imapd", "read", "mail"), "ok"),
        (on("imapd", "mapped", "mail"), "ok"),
        (on("imapd", "write", "mail"), "EACCES"),
        (on("imapd", "chmod", "mail"), "EACCES"),
        (on("imapd", "append", "log"), "ok"),
        (on("imapd", "write", "log"), "EACCES"),
        (on("imapd", "truncate", "log"), "EACCES"),
        (on("imapd", "read", "log"), "EACCES"),
        (on("web", "read", "mail"), "EACCES"),
        (on("web", "stat", "mail"), "EACCES"),
        (on("imapd", "stat", "mail"), "ok"),
        (on("none", "write", "mail"), "ok"),
        (on("none", "chmod", "mail"), "ok"),
        (by("web", &format!("read:{elsewhere}")), "ok"),
        (by("web", &format!("write:{elsewhere}")), "EACCES"),
        (by("none", &format!("write:{elsewhere}")), "ok"),
        (by("web", "write:/dev/null"), "ok"),
        // A new file has the type that a rule names, or that of its directory.
        (on("imapd", "create", "spool/letter"), "ok"),
        (on("imapd", "read", "spool/letter"), "ok"),
        (on("web", "read", "spool/letter"), "EACCES"),
        (on("none", "create_open", "spool/job"), "ok"),
        (on("web", "read", "spool/job"), "ok"),
        (on("web", "create", "spool/other"), "EACCES"),
        (on("imapd", "pipe_in", "spool"), "EACCES"),
        (on("imapd", "unlink", "spool/job"), "EACCES"),
        (on("imapd", "unlink", "spool/letter"), "ok"),
        (on("imapd", "rmdir", "spool/kept"), "EACCES"),
        (on("imapd", "rmdir", "spool/own"), "ok"),
        (on("none", "rmdir", "spool/kept"), "ok"),
        (on("imapd", "create", "new"), "EACCES"),
        // Programs.
        (runs("web", "tool", "mail"), "EACCES"),
        (runs("web", "imapd", "mail"), "ok"),
        (runs("web", "imapd", "log"), "EACCES"),
        (runs("none", "imapd", "mail"), "ok"),
        (runs("none", "imapd", "log"), "EACCES"),
        (runs("none", "tool", "log"), "ok"),
        (on("web", "execute", "admin"), "EACCES"),
        (on("none", "execute", "admin"), "ok"),
        (on("web", "execute", "log_exec"), "EACCES"),
        (on("none", "execute", "log_exec"), "ok"),
        // A script begins a domain only if its interpreter is an entry point, too. An exempt process may run
        // any program in a domain.
        (on("web", "execute", "script"), "EACCES"),
        (on("none", "execute", "script"), "ok"),
        (on("web", "execute", "own_script"), "ok"),
        (on("none", "execute", "own_script"), "ok"),
        (on("web", "execute", "tool_script"), "ok"),
        // A process enters only a domain that it may take.
        (by("admin", "label:te/web"), "ok"),
        (by("web", "label:te/admin"), "EPERM"),
        (by("web", "label_at_exec:te/admin"), "EPERM"),
        (by("admin", "label:te/imapd"), "EPERM"),
        (by("none", "label:te/imapd"), "ok"),
        (by("none", "label:te/unconfined"), "EINVAL"),
        (by("none", "label:te/mail"), "EINVAL"),
        (by("none", "label:te/no_such"), "EINVAL"),
        // Privileges.
        (root("admin", "set_clock"), "ok"),
        (root("web", "set_clock"), "EPERM"),
        ("set_clock".into(), "ok"),
        // Sockets, and IPC.
        (by("web", "abstract_stream"), "ok"),
        (by("admin", "abstract_stream"), "EACCES"),
        (by("admin", "bind:0"), "ok"),
        (by("web", "bind:0"), "EACCES"),
        (format!("crosses:{user}:te/imapd:te/web:stream"), "ok"),
        (format!("crosses:{user}:te/web:te/imapd:stream"), "EACCES"),
        ("waits_for_message:te/imapd:te/web".into(), "ok"),
        ("waits_for_message:te/web:te/imapd".into(), "EACCES"),
        ("waits_for_message:te/web:te/web".into(), "ok"),
        // Types are changed as a rule has it.
        (
            root("web", &format!("label_file:{}:te/mail", path("incoming"))),
            "EPERM",
        ),
        (
            root("admin", &format!("label_file:{}:te/log", path("incoming"))),
            "EPERM",
        ),
        (
            root("admin", &format!("label_file:{}:te/mail", path("incoming"))),
            "ok",
        ),
        (
            root(
                "admin",
                &format!("label_file:{}:te/spool", path("incoming")),
            ),
            "EPERM",
        ),
        (
            format!("label_file:{}:te/no_such", path("incoming")),
            "EINVAL",
        ),
        (format!("label_file:{}:te/web", path("incoming")), "EINVAL"),
        (format!("label_file:{}:te/spool", path("incoming")), "ok"),
    ]);
    // The label of a process that a rule has put into its domain.
    let mut sleeper = Command::new(mounted.join("imapd_sleep"));
    let mut sleeper = sleeper.arg("600").uid(user).gid(user).spawn().unwrap();
    let mut plain = Command::new("sleep");
    let mut plain = plain.arg("600").uid(user).gid(user).spawn().unwrap();
    let (kill, kill_plain) = (
        format!("kill:{}", sleeper.id()),
        format!("kill:{}", plain.id()),
    );
    actor.does_all(&[
        (by("admin", &kill), "ok"),
        (by("web", &kill), "EACCES"),
        (by("none", &kill), "ok"),
        (by("admin", &kill_plain), "EACCES"),
        (by("none", &kill_plain), "ok"),
        (format!("crosses:{user}:te/admin:te/imapd:seize"), "ok"),
        (format!("crosses:{user}:te/web:te/imapd:seize"), "EACCES"),
        (format!("crosses:{user}:te/admin:te/imapd:nice"), "ok"),
        (format!("crosses:{user}:te/web:te/imapd:nice"), "EACCES"),
    ]);
    for child in [&mut sleeper, &mut plain] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    learns(&mut world, &mut actor, &on("web", "read", "mail"));
    // A domain that has left the policy is entered by nobody.
    let act = format!("within:te/web:read:{elsewhere}");
    let framework = world.framework();
    let alone = types(&format!("domain web; {TYPES} {}", base("web")));
    framework.configure("te", &alone).unwrap();
    actor.does_all(&[(act.clone(), "ok")]);
    let without = types(&format!("domain other; {TYPES}"));
    framework.configure("te", &without).unwrap();
    actor.does_all(&[(act, "EINVAL")]);
    drop(actor);
    let ended = Command::new("umount").arg("-l").arg(&mounted).status();
    assert!(ended.unwrap().success());
}

/// A permissive domain is refused nothing. With rules made from the permissions it lacked, it need not be
/// permissive any more.
fn learns(world: &mut World, actor: &mut Actor, reads: &str) {
    let framework = world.framework();
    framework.configure("te", &types(&policy())).unwrap();
    actor.does_all(&[(reads.into(), "EACCES")]);
    let refused = framework.type_denials().unwrap();
    let about = |denials: &usher_mac::te::Denials| {
        let denials = denials.denials.iter();
        let denials = denials.map(|one| {
            let (domain, class, permissions) = (&one.domain, one.class, one.permissions.join(" "));
            // Capabilities are the domain's own.
            let object = match class {
                Class::Capability => "self",
                _ => &one.object,
            };
            format!("allow {domain} {object} {class} {permissions};")
        });
        denials.collect::<Vec<_>>()
    };
    assert!(
        about(&refused).contains(&"allow web mail file read;".to_owned()),
        "{refused:?}"
    );
    let permissive = format!("{} permissive web;", policy());
    framework.configure("te", &types(&permissive)).unwrap();
    assert_eq!(framework.type_denials().unwrap(), Default::default());
    actor.does_all(&[(reads.into(), "ok")]);
    let learned = framework.type_denials().unwrap();
    assert_eq!((learned.lost, learned.undeclared), (0, 0));
    let complete = policy() + &about(&learned).concat();
    framework.configure("te", &types(&complete)).unwrap();
    actor.does_all(&[(reads.into(), "ok")]);
    assert_eq!(framework.type_denials().unwrap(), Default::default());
}
