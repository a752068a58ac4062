//! Rules of `bsdextended` in a kernel: what they refuse one user, and permit the twin.

use super::*;

// Threat model: M1
#[test]
fn a_rule_refuses_one_user_and_permits_the_twin() {
    let Some(mut world) = World::new("rule", 0) else {
        return;
    };
    let file = world.file("refused", OWNER);
    let permitted = world.file("permitted", OTHER);
    let rules = vec![world.rule("n")];
    let acts = [
        "read",
        "write",
        "append",
        "execute",
        "stat",
        "through_proc",
        "mapped",
        "by_ring",
        "truncate",
    ];
    let to = |file: &Path| acts.map(|name| on(name, file)).to_vec();
    assert_eq!(act(world.user, &to(&file)), all(&to(&file), "ok"));
    world.load_rules(rules);
    assert_eq!(act(world.user, &to(&file)), all(&to(&file), "EACCES"));
    assert_eq!(act(world.user, &to(&permitted)), all(&to(&permitted), "ok"));
    assert_eq!(act(world.twin, &to(&file)), all(&to(&file), "ok"));
    let loaded = world.framework().modules().unwrap();
    assert_eq!(loaded.len(), 1);
    assert_eq!(
        (loaded[0].name.as_str(), loaded[0].slot),
        ("bsdextended", 0)
    );
    let refusals = |point: EntryPoint| {
        let all = loaded[0].refusals.iter();
        all.filter(|(refused, _)| *refused == point)
            .map(|(_, count)| *count)
            .sum::<u64>()
    };
    assert!(refusals(EntryPoint::InodePermission) > 0, "{loaded:?}");
    assert_eq!(refusals(EntryPoint::InodeGetattr), 1, "{loaded:?}");
}

// Threat model: M1
#[test]
fn names_of_a_refused_file_are_not_changed() {
    let Some(mut world) = World::new("names", 1) else {
        return;
    };
    let rules = vec![world.rule("rs")];
    world.load_rules(rules);
    let trial = |owner: u32| {
        let file = world.file("one", owner);
        let other = world.file("other", OTHER);
        let (fresh, linked) = (world.path("fresh"), world.path("linked"));
        // A directory of the owner's, in which the user may do nothing but read.
        let directory = world.path("directory");
        if !directory.exists() {
            fs::create_dir(&directory).unwrap();
        }
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        chown(&directory, Some(owner), Some(owner)).unwrap();
        [
            on("read", &file),
            onto("link", &file, &linked),
            onto("rename", &file, &fresh),
            onto("exchange", &other, &file),
            onto("rename", &other, &file),
            on("create", &directory.join("new")),
            onto("link", &other, &directory.join("other")),
            on("unlink", &file),
        ]
    };
    let acts = trial(OWNER);
    let mut expected = all(&acts, "EACCES");
    // The kernel itself refuses a link to a file that the user may not write
    // (fs.protected_hardlinks).
    expected[1] = "link EPERM".into();
    let results = act(world.user, &acts);
    assert_eq!(results[0], "read ok");
    assert_eq!(results[1..], expected[1..]);
    // Each act, by a user whom no rule is about.
    for act_alone in [1, 2, 3, 4, 5, 6, 7] {
        let acts = trial(OWNER);
        assert_eq!(
            act(world.twin, &acts[act_alone..=act_alone]),
            all(&acts[act_alone..=act_alone], "ok")
        );
        for name in ["fresh", "linked", "directory/new", "directory/other"] {
            let _ = fs::remove_file(world.path(name));
        }
    }
}

// Threat model: M3
#[test]
fn an_owner_changes_attributes_only_with_the_right() {
    let Some(mut world) = World::new("attributes", 2) else {
        return;
    };
    let own = world.file("own", world.user);
    let twins = world.file("twins", world.twin);
    let (first, last) = (world.user, world.twin);
    let rule = |user: u32, mode: &str| {
        let owners = format!("uid {first}:{last} uid_of_subject");
        rule(&format!(
            "rule subject uid {user} object {owners} mode {mode};"
        ))
    };
    let rules = vec![rule(world.user, "rswx"), rule(world.twin, "arswx")];
    world.load_rules(rules);
    let names = ["chmod", "times", "set_acl", "remove_acl"];
    let acts = |file: &Path| names.map(|name| on(name, file)).to_vec();
    assert_eq!(act(world.user, &acts(&own)), all(&acts(&own), "EACCES"));
    assert_eq!(act(world.twin, &acts(&twins)), all(&acts(&twins), "ok"));
}

// Threat model: M1
#[test]
fn a_capability_makes_up_for_what_it_is_for_only() {
    let Some(mut world) = World::new("capability", 3) else {
        return;
    };
    let file = world.file("file", OWNER);
    let rules = vec![world.rule("n")];
    let user = world.user.to_string();
    // `by_handle` opens the file for writing and looks up no name, so CAP_DAC_READ_SEARCH does not help.
    let with = |capability: &str| {
        let acts = [on("read", &file), on("by_handle", &file)];
        let actor = actor(world.user, &acts);
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.args(["--inh-caps", capability, "--ambient-caps", capability]);
        let output = command
            .arg(actor.get_program())
            .args(actor.get_args())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(with("+dac_read_search"), "read ok\nby_handle ok\n");
    world
        .framework
        .as_mut()
        .unwrap()
        .load(&Module::bsdextended(rules))
        .unwrap();
    assert_eq!(with("+dac_read_search"), "read ok\nby_handle EACCES\n");
    assert_eq!(
        with("+dac_read_search,+dac_override"),
        "read ok\nby_handle ok\n"
    );
}

// Threat model: M7
#[test]
fn no_access_slips_through_while_settings_are_exchanged() {
    let Some(mut world) = World::new("exchanged", 8) else {
        return;
    };
    let file = world.file("file", OWNER);
    let rule = world.rule("n");
    // Both settings refuse, each by another one of many rules.
    let user = world.user;
    let other = format!("rule subject uid {user} object uid {OTHER} mode n;");
    let other = super::rule(&other);
    let mut many = vec![other; 255];
    many.push(rule.clone());
    world.load_rules(vec![rule.clone()]);
    let mut opener = actor(world.user, &[on("until_killed", &file)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(opener.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    for round in 0..200 {
        let rules = if round % 2 == 0 {
            many.clone()
        } else {
            vec![rule.clone()]
        };
        world
            .framework()
            .configure("bsdextended", &settings(rules))
            .unwrap();
        // Another module comes and goes in the meantime.
        if round % 50 == 0 {
            world.framework().load(&Module::none()).unwrap();
            world.framework().unload("none").unwrap();
        }
    }
    assert!(opener.try_wait().unwrap().is_none(), "{:?}", lines.next());
    // The twin of the attempt: without the rule it succeeds at once.
    world.framework().unload("bsdextended").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "reached");
    opener.wait().unwrap();
}

// Threat model: M4
#[test]
fn what_is_open_stays_open() {
    let Some(mut world) = World::new("open", 9) else {
        return;
    };
    let file = world.file("file", OWNER);
    let rules = vec![world.rule("n")];
    let mut reader = actor(world.user, &[on("read_later", &file)]);
    let reader = reader.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut reader = Opener(reader.unwrap());
    assert_eq!(reader.line(), "begun");
    world.load_rules(rules);
    drop(reader.0.stdin.take());
    // As on FreeBSD: rules are about opening. Through /proc it would be opened anew.
    assert_eq!(reader.line(), "read");
    assert_eq!(reader.line(), "anew EACCES");
    reader.0.wait().unwrap();
}
