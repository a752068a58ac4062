//! The life of labels, by the module `test`: a process opens a file named `closed` only under that name.

use super::*;

/// A file system of its own, where every file has a label, and the module `test`.
pub(super) struct Labels {
    pub(super) world: World,
    pub(super) mounted: PathBuf,
}

impl Labels {
    pub(super) fn new(name: &str, number: u32) -> Option<Self> {
        let mut world = World::new(name, number)?;
        let mounted = world.mount_multilabel();
        world
            .framework()
            .load(&Module::named("test").unwrap())
            .unwrap();
        let labels = Self { world, mounted };
        labels.label(&labels.mounted, "plain");
        Some(labels)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.mounted.join(name)
    }

    /// Root sets the label of a file.
    pub(super) fn label(&self, path: &Path, name: &str) {
        set_label(path, &format!("test/{name}"));
    }

    /// A file that every user may read, write and execute unless its label forbids it.
    pub(super) fn file(&self, name: &str, label: &str) -> PathBuf {
        let path = self.path(name);
        fs::copy("/bin/cat", &path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        self.label(&path, label);
        path
    }

    /// The results of these acts by the user.
    fn act(&self, acts: &[String]) -> Vec<String> {
        act(self.world.user, acts)
    }
}

impl Drop for Labels {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.mounted).status();
    }
}

fn acts<const N: usize>(acts: [String; N]) -> Vec<String> {
    acts.to_vec()
}

fn set(name: &str) -> String {
    format!("label:test/{name}")
}

#[test]
fn children_threads_and_programs_have_the_label() {
    let Some(labels) = Labels::new("inherit", 20) else {
        return;
    };
    let closed = labels.file("closed", "closed");
    let program = labels.file("program", "plain");
    let reads = |name: &str| format!("{name}:read:{}", closed.display());
    let of = |name: &str| {
        acts([
            set(name),
            on("read", &closed),
            reads("in_child"),
            reads("in_thread"),
            onto("after_exec", &program, &closed),
        ])
    };
    let mut expected = all(&of("closed"), "ok");
    assert_eq!(labels.act(&of("closed")), expected);
    expected[1..].clone_from_slice(&all(&of("other")[1..], "EACCES"));
    assert_eq!(labels.act(&of("other")), expected);
    assert_eq!(labels.act(&of("other")[1..]), expected[1..]);
}

// Threat model: M39
#[test]
fn a_label_that_its_module_refuses_is_not_set() {
    let Some(labels) = Labels::new("refused", 21) else {
        return;
    };
    let closed = labels.file("closed", "closed");
    let long = |length: usize| format!("label:test/{}", "n".repeat(length));
    let results = labels.act(&acts([
        set("forbid"),
        "label:test/".into(),
        "label:".into(),
        "label:test".into(),
        "label:test/a,test/b".into(),
        "label:test/a,".into(),
        "label:bsdextended/a".into(),
        "label:test/a=b".into(),
        long(64),
        long(63),
        set("closed"),
        set("stays"),
        on("read", &closed),
        set("plain"),
        "label_at_exec:test/plain".into(),
    ]));
    let mut expected = vec!["label EACCES"];
    expected.extend(["label EINVAL"; 8]);
    expected.extend(["label ok"; 3]);
    expected.extend(["read EACCES", "label EPERM", "label_at_exec EPERM"]);
    assert_eq!(results, expected);
}

// Threat model: M43
#[test]
fn a_program_gets_the_label_that_was_set_for_it() {
    let Some(labels) = Labels::new("at_exec", 22) else {
        return;
    };
    let closed = labels.file("closed", "closed");
    let program = labels.file("program", "plain");
    let after = |before: &str| {
        let (program, closed) = (program.display(), closed.display());
        format!("after_exec:{program}:{closed}:{before}")
    };
    let results = labels.act(&acts([
        after("label_at_exec=test/closed"),
        after("label_at_exec=test/closed:label_at_exec="),
        after("label_at_exec=test/closed:label=test/other"),
        "label_at_exec:test/closed".into(),
        on("read", &closed),
        // Children do not inherit it.
        onto("after_exec", &program, &closed),
    ]));
    let expected = [
        "after_exec ok",
        "after_exec EACCES",
        "after_exec EACCES",
        "label_at_exec ok",
        "read EACCES",
        "after_exec EACCES",
    ];
    assert_eq!(results, expected);
}

#[test]
fn a_module_decides_the_label_of_a_program() {
    let Some(labels) = Labels::new("program", 23) else {
        return;
    };
    let closed = labels.file("closed", "closed");
    let entry = labels.file("entry", "entry");
    let plain = labels.file("plain", "plain");
    let from = |program: &Path| {
        let (program, closed) = (program.display(), closed.display());
        format!("after_exec:{program}:{closed}:label=test/closed")
    };
    let results = labels.act(&[from(&entry), from(&plain)]);
    assert_eq!(results, ["after_exec EACCES", "after_exec ok"]);
}

// Threat model: M51
#[test]
fn a_traced_process_gets_no_other_label() {
    let Some(labels) = Labels::new("traced", 36) else {
        return;
    };
    let plain = labels.file("plain", "plain");
    let entry = labels.file("entry", "entry");
    let file = labels.file("file", "plain");
    let results = labels.act(&acts([
        "label_traced:test/other".into(),
        // A label of its own, that of the program's file, and none.
        format!("{}:test/other", onto("exec_traced", &plain, &file)),
        onto("exec_traced", &entry, &file),
        onto("exec_traced", &plain, &file),
        // The same where the process traces another one.
        "label_tracing:test/other".into(),
        format!("exec_tracing:{}", entry.display()),
        format!("exec_tracing:{}", plain.display()),
        // The same where another process may answer its system calls. A seccomp filter without a listener
        // does not count.
        "label_listened:test/other".into(),
        format!("exec_listened:{}", entry.display()),
        format!("exec_listened:{}", plain.display()),
        format!("exec_listened:{}:no", entry.display()),
        // The twins that nobody traces.
        "in_child:label:test/other".into(),
        format!(
            "{}:label_at_exec=test/other",
            onto("after_exec", &plain, &file)
        ),
        onto("after_exec", &entry, &file),
    ]));
    let expected = [
        "label_traced EPERM",
        "exec_traced EPERM",
        "exec_traced EPERM",
        "exec_traced ok",
        "label_tracing EPERM",
        "exec_tracing EPERM",
        "exec_tracing ok",
        "label_listened EPERM",
        "exec_listened EPERM",
        "exec_listened ok",
        "exec_listened ok",
        "in_child ok",
        "after_exec ok",
        "after_exec ok",
    ];
    assert_eq!(results, expected);
}

// Threat model: M41
#[test]
fn a_thread_that_executes_takes_the_label_along() {
    let Some(labels) = Labels::new("thread", 24) else {
        return;
    };
    let closed = labels.file("closed", "closed");
    let program = labels.file("program", "plain");
    let (program, closed) = (program.display(), closed.display());
    let with = |name: &str| format!("exec_of_thread:{program}:{closed}:test/{name}");
    let results = labels.act(&[with("closed"), with("other")]);
    assert_eq!(results, ["exec_of_thread ok", "exec_of_thread EACCES"]);
}

// Threat model: M40
#[test]
fn a_label_that_stays_is_not_left_by_a_race() {
    let Some(labels) = Labels::new("race", 25) else {
        return;
    };
    let results = labels.act(&["relabels_race:20".into()]);
    assert_eq!(results, ["relabels_race ok"]);
}

#[test]
fn a_module_is_called_by_its_name() {
    let Some(labels) = Labels::new("call", 26) else {
        return;
    };
    let results = labels.act(&acts([
        "call:test:1:0".into(),
        format!("call:test:1:{}", libc::EROFS),
        "call:test:2:0".into(),
        "call:nobody:1:0".into(),
    ]));
    assert_eq!(
        results,
        ["call ok", "call EROFS", "call EINVAL", "call ENOSYS"]
    );
}

// Threat model: M94
#[test]
fn a_new_file_has_the_label_of_its_process() {
    let Some(labels) = Labels::new("new", 27) else {
        return;
    };
    Framework::require_new_files().unwrap();
    let shared = labels.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    labels.label(&shared, "shared");
    let (new, unnamed) = (labels.path("new"), labels.path("unnamed"));
    let common = shared.join("common");
    let made = acts([
        set("closed"),
        on("create_open", &new),
        on("unnamed_file", &unnamed),
        on("create_open", &common),
        on("read", &new),
        on("read", &unnamed),
    ]);
    assert_eq!(labels.act(&made), all(&made, "ok"));
    let others = acts([on("read", &new), on("read", &unnamed), on("read", &common)]);
    let expected = ["read EACCES", "read EACCES", "read ok"];
    assert_eq!(act(labels.world.twin, &others), expected);
}

#[test]
fn a_new_file_that_a_module_refuses_is_not_made() {
    let Some(mut labels) = Labels::new("no_file", 34) else {
        return;
    };
    let new = labels.path("new");
    // The kernel would take the second error for none.
    for (error, seen) in [(libc::EROFS, "EROFS"), (libc::EOPNOTSUPP, "EACCES")] {
        let refusing = Settings::Test(Answers {
            uid: labels.world.user,
            errors: vec![(EntryPoint::NewFile, error)],
        });
        let framework = labels.world.framework();
        framework.configure("test", &refusing).unwrap();
        let refused = labels.act(&[on("create", &new)]);
        assert_eq!(refused, [format!("create {seen}")]);
        assert!(!new.exists());
    }
    assert_eq!(act(labels.world.twin, &[on("create", &new)]), ["create ok"]);
}

// Threat model: M97
#[test]
fn a_file_without_a_label_is_refused_until_it_has_one() {
    let Some(mut labels) = Labels::new("unlabelled", 28) else {
        return;
    };
    // Made while no module keeps labels.
    labels.world.framework().unload("test").unwrap();
    let old = labels.path("old");
    fs::write(&old, "old").unwrap();
    fs::set_permissions(&old, Permissions::from_mode(0o666)).unwrap();
    let to_old = acts([on("read", &old), on("stat", &old)]);
    assert_eq!(labels.act(&to_old), all(&to_old, "ok"));
    let test = Module::named("test").unwrap();
    labels.world.framework().load(&test).unwrap();
    // The folder's label is known again when somebody has opened it.
    fs::read_dir(&labels.mounted).unwrap();
    assert_eq!(labels.act(&to_old), all(&to_old, "EACCES"));
    assert!(labels.world.framework().unknown_refusals().unwrap() >= 2);
    // Root may label files, and so look at them.
    assert_eq!(act(0, &to_old), all(&to_old, "ok"));
    labels.label(&old, "plain");
    assert_eq!(labels.act(&to_old), all(&to_old, "ok"));
}

#[test]
fn a_label_is_read_from_the_attribute_when_it_is_opened() {
    let Some(mut labels) = Labels::new("cold", 29) else {
        return;
    };
    let closed = labels.file("closed", "closed");
    let plain = labels.file("plain", "plain");
    // Labels are read again after another module with labels has come into force.
    labels.world.framework().unload("test").unwrap();
    let test = Module::named("test").unwrap();
    labels.world.framework().load(&test).unwrap();
    fs::read_dir(&labels.mounted).unwrap();
    // stat(2) cannot read the label from the attribute, open(2) can.
    let tried = |path: &Path| acts([on("stat", path), on("read", path), on("stat", path)]);
    assert_eq!(
        labels.act(&tried(&plain)),
        ["stat EACCES", "read ok", "stat ok"]
    );
    assert_eq!(labels.act(&tried(&closed)), all(&tried(&closed), "EACCES"));
    let to_closed = acts([set("closed"), on("read", &closed), on("stat", &closed)]);
    assert_eq!(labels.act(&to_closed), all(&to_closed, "ok"));
}

// Threat model: M105
#[test]
fn a_label_of_a_file_changes_only_as_its_module_permits() {
    let Some(labels) = Labels::new("relabel", 30) else {
        return;
    };
    let plain = labels.file("plain", "plain");
    let stays = labels.file("stays", "stays");
    let to = |name: &str, path: &Path| format!("label_file:{}:test/{name}", path.display());
    let results = act(
        0,
        &acts([
            to("forbid", &plain),
            format!("label_file:{}:test", plain.display()),
            to("other", &stays),
            on("unlabel_file", &stays),
            to("other", &plain),
            to("stays", &stays),
            // The element left out: refused, and permitted.
            format!("label_file:{}:absent/x", stays.display()),
            format!("label_file:{}:absent/x", plain.display()),
            on("unlabel_file", &plain),
        ]),
    );
    let expected = [
        "label_file EACCES",
        "label_file EINVAL",
        "label_file EPERM",
        "unlabel_file EPERM",
        "label_file ok",
        "label_file ok",
        "label_file EPERM",
        "label_file ok",
        "unlabel_file ok",
    ];
    assert_eq!(results, expected);
    // Without CAP_SYS_ADMIN not even the owner sets a label.
    let own = labels.file("own", "plain");
    chown(&own, Some(labels.world.user), None).unwrap();
    assert_eq!(labels.act(&[to("other", &own)]), ["label_file EPERM"]);
    assert_eq!(act(0, &[to("other", &own)]), ["label_file ok"]);
}

// Threat model: M93
#[test]
fn a_label_follows_its_file_under_every_name() {
    let Some(labels) = Labels::new("names_labels", 31) else {
        return;
    };
    let directory = labels.path("directory");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
    labels.label(&directory, "plain");
    for (label, expected) in [("closed", "EACCES"), ("plain", "ok")] {
        let file = labels.file(label, label);
        let linked = labels.path(&format!("linked_{label}"));
        fs::hard_link(&file, &linked).unwrap();
        let renamed = directory.join(label);
        fs::rename(&file, &renamed).unwrap();
        let passed = format!("passed_descriptor:{}:test/closed", renamed.display());
        let tried = acts([
            on("read", &linked),
            on("read", &renamed),
            on("mapped", &renamed),
            on("by_ring", &renamed),
            on("through_proc", &renamed),
            passed,
        ]);
        assert_eq!(labels.act(&tried), all(&tried, expected));
    }
}

// Threat model: M50
#[test]
fn a_full_table_of_elements_refuses_new_ones_only() {
    let Some(labels) = Labels::new("full", 32) else {
        return;
    };
    let closed = labels.file("closed", "closed");
    // Two elements are there by then: `plain` and `closed`.
    let most = usher_mac::MAX_ELEMENTS_OF_USERS - 2;
    let tried = acts([
        format!("labels:0:{most}"),
        format!("labels:{most}:1"),
        "labels:0:10".into(),
        set("closed"),
        on("read", &closed),
    ]);
    let mut expected = all(&tried, "ok");
    expected[1] = "labels ENOSPC".into();
    assert_eq!(labels.act(&tried), expected);
    // There is room for what administrators set.
    labels.label(&closed, "another");
}

// Threat model: M97
#[test]
fn an_access_that_cannot_read_a_label_is_refused() {
    let Some(mut labels) = Labels::new("cannot_read", 33) else {
        return;
    };
    let file = labels.file("file", "plain");
    let socket = labels.path("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, Permissions::from_mode(0o777)).unwrap();
    labels.label(&socket, "plain");
    let tried = acts([
        on("tag", &file),
        on("watch", &file),
        on("truncate", &file),
        on("connect_name", &socket),
    ]);
    assert_eq!(labels.act(&tried), all(&tried, "ok"));
    labels.world.framework().unload("test").unwrap();
    let test = Module::named("test").unwrap();
    labels.world.framework().load(&test).unwrap();
    fs::read_dir(&labels.mounted).unwrap();
    assert_eq!(labels.act(&tried), all(&tried, "EACCES"));
    // The labels of both are known again.
    for path in [&file, &socket] {
        labels.label(path, "plain");
    }
    assert_eq!(labels.act(&tried), all(&tried, "ok"));
    drop(listener);
}
