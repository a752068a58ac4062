//! The module `te` in a kernel: each refusal with a twin that is permitted.

use super::attacks::Actor;
use super::*;

use usher_label::NameValue;
use usher_mac::te::{AllowRule, Class, CreationRule, RelabelRule, TransitionRule, TypeSettings};

fn name(text: &str) -> NameValue {
    text.parse().unwrap()
}

/// A rule in the words of the policy: `DOMAIN TYPE CLASS PERMISSION ...`.
pub(super) fn allow(rule: &str) -> AllowRule {
    let words: Vec<&str> = rule.split(' ').collect();
    let [domain, object, class, permissions @ ..] = words.as_slice() else {
        panic!("{rule}");
    };
    let class = Class::named(class).unwrap();
    let object = if *object == "self" { domain } else { object };
    AllowRule {
        domain: name(domain),
        object: name(object),
        class,
        permissions: class.permissions(permissions.iter().copied()).unwrap(),
    }
}

/// What every process of the tests does, whatever its domain: it runs a script, becomes a user, and looks names
/// up.
pub(super) fn base(domain: &str) -> Vec<AllowRule> {
    [
        "unlabelled file read execute getattr",
        "unlabelled directory read search getattr",
        "unlabelled link getattr",
        "unconfined pipe read write getattr",
        "self pipe read write getattr",
        "self capability setuid setgid",
        "top directory search getattr",
    ]
    .map(|rule| allow(&format!("{domain} {rule}")))
    .into()
}

/// A mail server, which programs of the type `imapd_exec` begin; another server; and an administrator.
fn policy() -> TypeSettings {
    let domains = ["imapd", "web", "admin"];
    let types = [
        "top",
        "imapd_exec",
        "tool_exec",
        "admin_exec",
        "mail",
        "spool",
        "inbox",
        "log",
        "inner",
    ];
    let transition = |[domain, program, next]: [&str; 3]| TransitionRule {
        domain: name(domain),
        program: name(program),
        next: name(next),
    };
    let mut rules: Vec<AllowRule> = domains.into_iter().flat_map(base).collect();
    rules.extend(
        [
            "imapd imapd_exec file read execute entrypoint getattr",
            "imapd mail file read getattr",
            "imapd inbox file create read write getattr unlink",
            "imapd spool file read",
            "imapd log file append getattr",
            "imapd spool directory search add_name remove_name getattr",
            "imapd inner directory create unlink",
            "web imapd_exec file execute read",
            "web tool_exec file execute read",
            "web admin_exec file execute read",
            "web spool file read",
            "web spool directory search",
            "web self socket create connect bind listen accept read write",
            "web self ipc read write getattr setattr",
            "imapd web socket connect",
            "imapd self socket create connect bind listen accept",
            "imapd self ipc read write getattr setattr",
            "imapd web ipc read",
            "admin imapd process signal ptrace setsched",
            "admin web process transition",
            "admin self socket network bind",
            "admin self capability sys_time sys_admin dac_override fowner",
            "admin spool directory search",
        ]
        .map(allow),
    );
    TypeSettings {
        domains: domains.map(name).to_vec(),
        types: types.map(name).to_vec(),
        permissive: Vec::new(),
        allow: rules,
        transitions: [
            ["unconfined", "imapd_exec", "imapd"],
            ["web", "imapd_exec", "imapd"],
            // Without an entry point.
            ["web", "admin_exec", "admin"],
        ]
        .map(transition)
        .into(),
        creations: vec![
            CreationRule {
                domain: name("imapd"),
                directory: name("spool"),
                class: Class::File,
                created: name("inbox"),
            },
            CreationRule {
                domain: name("imapd"),
                directory: name("spool"),
                class: Class::Directory,
                created: name("inner"),
            },
        ],
        relabels: vec![RelabelRule {
            domain: name("admin"),
            from: name("spool"),
            to: name("mail"),
        }],
    }
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
    let module = Module::with(Settings::Te(policy()));
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
        // What is made has the type that a rule gives it, or that of its directory.
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
        // A script begins a domain only if its interpreter is an entry point, too; an exempt process runs in it what
        // it likes.
        (on("web", "execute", "script"), "EACCES"),
        (on("none", "execute", "script"), "ok"),
        (on("web", "execute", "own_script"), "ok"),
        (on("none", "execute", "own_script"), "ok"),
        (on("web", "execute", "tool_script"), "ok"),
        // Domains are entered by those that may.
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
    // Of a process that a rule has put into its domain.
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
    let mut without = TypeSettings {
        domains: vec![name("web")],
        types: policy().types,
        allow: base("web"),
        ..TypeSettings::default()
    };
    let act = format!("within:te/web:read:{elsewhere}");
    let framework = world.framework();
    framework
        .configure("te", &Settings::Te(without.clone()))
        .unwrap();
    actor.does_all(&[(act.clone(), "ok")]);
    without.domains = vec![name("other")];
    without.allow.clear();
    framework.configure("te", &Settings::Te(without)).unwrap();
    actor.does_all(&[(act, "EINVAL")]);
    drop(actor);
    let ended = Command::new("umount").arg("-l").arg(&mounted).status();
    assert!(ended.unwrap().success());
}

/// A permissive domain is refused nothing; with the rules that are made of what it lacked it needs to be
/// permissive no longer.
fn learns(world: &mut World, actor: &mut Actor, reads: &str) {
    let mut settings = policy();
    let framework = world.framework();
    framework
        .configure("te", &Settings::Te(settings.clone()))
        .unwrap();
    actor.does_all(&[(reads.into(), "EACCES")]);
    let refused = framework.type_denials().unwrap();
    let about = |denials: &usher_mac::te::Denials| {
        let denials = denials.denials.iter();
        let denials = denials.map(|one| {
            let permissions = one.permissions.join(" ");
            let class = one.class.word();
            format!("{} {} {class} {permissions}", one.domain, one.object)
        });
        denials.collect::<Vec<_>>()
    };
    assert!(
        about(&refused).contains(&"web mail file read".to_owned()),
        "{refused:?}"
    );
    settings.permissive = vec![name("web")];
    framework
        .configure("te", &Settings::Te(settings.clone()))
        .unwrap();
    assert_eq!(framework.type_denials().unwrap(), Default::default());
    actor.does_all(&[(reads.into(), "ok")]);
    let learned = framework.type_denials().unwrap();
    assert_eq!((learned.lost, learned.undeclared), (0, 0));
    settings.permissive.clear();
    settings
        .allow
        .extend(about(&learned).iter().map(|rule| allow(rule)));
    framework.configure("te", &Settings::Te(settings)).unwrap();
    actor.does_all(&[(reads.into(), "ok")]);
    assert_eq!(framework.type_denials().unwrap(), Default::default());
}
