//! Object files that are modules, and those that are not: compiled here, and read as the labeller reads
//! them. No kernel gets them.

use std::process::Command;
use std::sync::OnceLock;

use proptest::prelude::*;
use usher_mac::{
    Declaration, EntryPoint, MAX_MODULE_SIZE, Module, NAMES, NoStatements, NotAModule, Settings,
    StatementValues, is_module_name,
};

/// Compiles the text of a module, for BPF unless other options say otherwise: the object, or clang's errors.
fn compile(text: &str, options: &[&str]) -> Result<Vec<u8>, String> {
    let folder = tempfile::tempdir().unwrap();
    let (source, object) = (folder.path().join("m.bpf.c"), folder.path().join("m.bpf.o"));
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../bpf/include");
    std::fs::write(&source, format!("#include \"usher_mac_policy.h\"\n{text}")).unwrap();
    let architecture = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let compiled = Command::new("clang")
        .args(["-O2", "-Wall", "-Werror", "-I", include])
        .args(["-idirafter", &architecture])
        .args(options)
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .output()
        .unwrap();
    if compiled.status.success() {
        Ok(std::fs::read(&object).unwrap())
    } else {
        Err(String::from_utf8_lossy(&compiled.stderr).into_owned())
    }
}

fn compiled(text: &str, options: &[&str]) -> Vec<u8> {
    compile(text, options).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

const BPF: [&str; 4] = ["-g", "-target", "bpf", "-mcpu=v3"];

const GOOD: &str = "MAC_POLICY(sample);\n\
                    MAC_CHECK(task_kill) { return request->signal == 9 ? -EPERM : 0; }\n\
                    MAC_CHECK(file_open) { return request->file.uid == 7 ? -EACCES : 0; }\n";

fn good() -> &'static [u8] {
    static GOOD_OBJECT: OnceLock<Vec<u8>> = OnceLock::new();
    GOOD_OBJECT.get_or_init(|| compiled(GOOD, &BPF))
}

fn refused(text: &str) -> NotAModule {
    Module::from_object(compiled(text, &BPF)).unwrap_err()
}

#[test]
fn a_module_declares_its_name_and_entry_points() {
    let read = Declaration::read(good()).unwrap();
    assert_eq!(read.name, "sample");
    assert_eq!(
        read.entry_points,
        [EntryPoint::FileOpen, EntryPoint::TaskKill]
    );
    assert!(!read.has_settings);
    let module = Module::from_object(good().to_vec()).unwrap();
    assert_eq!(module.name(), "sample");
    assert_eq!(module.declaration().unwrap(), read);
}

#[test]
fn a_built_in_module_is_read_in_the_same_way() {
    for name in NAMES {
        let module = Module::named(name).unwrap();
        let read = module.declaration().unwrap();
        assert_eq!(read.name, name);
        let has_settings = module.settings().is_some();
        assert_eq!(read.has_settings, has_settings, "{name}");
        // A built-in module could be loaded from a file, too, unless it has settings.
        let from_object = Module::from_object(module.object().to_vec());
        let expected = if has_settings {
            Err(NotAModule::NoStatement)
        } else {
            Ok(name.to_owned())
        };
        assert_eq!(from_object.map(|module| module.name().to_owned()), expected);
    }
    let none = Module::none().declaration().unwrap();
    assert_eq!(none.entry_points, EntryPoint::all().collect::<Vec<_>>());
}

#[test]
fn constants_and_functions_of_its_own_are_permitted() {
    let text = "MAC_POLICY(sample);\n\
                static const __u32 owners[5] = { 3, 1, 4, 1, 5 };\n\
                static __attribute__((noinline)) int is_one(__u32 uid, __u32 place)\n\
                { return owners[place % 5] == uid; }\n\
                MAC_CHECK(file_open)\n\
                { return is_one(request->file.uid, subject->uid) ? -EACCES : 0; }\n";
    Module::from_object(compiled(text, &BPF)).unwrap();
}

const WITH_SETTINGS: &str = "MAC_POLICY(sample);\n\
     struct settings { __u32 exempt_count; __u32 exempt[16]; __u32 ports_count; __u32 ports[4]; __u32 strict; };\n\
     MAC_SETTINGS(struct settings);\n\
     MAC_STATEMENTS(MAC_USERS(exempt), MAC_NUMBERS(ports, 1, 65535), MAC_SWITCH(strict, 1));\n\
     MAC_CHECK(file_open)\n\
     { const struct settings *now = mac_settings(); return now && now->strict ? -EACCES : 0; }\n";

#[test]
fn statements_say_what_the_policy_may_set() {
    let module = Module::from_object(compiled(WITH_SETTINGS, &BPF)).unwrap();
    let read = module.declaration().unwrap().statements;
    let found: Vec<_> = read
        .iter()
        .map(|one| (one.keyword.as_str(), &one.values, one.list))
        .collect();
    let expected = [
        ("exempt", &StatementValues::Users, Some(16)),
        ("ports", &StatementValues::Numbers(1..=65535), Some(4)),
        ("strict", &StatementValues::Switch, None),
    ];
    assert_eq!(found, expected);
    // The settings where the policy says nothing.
    let words = |settings: &Settings| -> Vec<u32> {
        let bytes = settings.encode().unwrap();
        let words = bytes.chunks_exact(4);
        words
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect()
    };
    let Some(Settings::Declared(mut settings)) = module.settings().cloned() else {
        panic!("settings");
    };
    let mut expected = vec![0; 23];
    expected[22] = 1;
    assert_eq!(words(&Settings::Declared(settings.clone())), expected);
    settings.set(&read[1], &[22, 80]);
    settings.set(&read[2], &[0]);
    (expected[17], expected[18], expected[19], expected[22]) = (2, 22, 80, 0);
    assert_eq!(words(&Settings::Declared(settings)), expected);
}

#[test]
fn a_member_that_no_statement_can_set_does_not_compile() {
    for member in [
        "__u64 wide",
        "__u16 narrow",
        "__u64 lists[4]; __u32 lists_count",
    ] {
        let name = member.split([' ', '[', ';']).nth(1).unwrap();
        let list = if member.contains('[') {
            "MAC_USERS"
        } else {
            "MAC_SWITCH"
        };
        let rest = if list == "MAC_SWITCH" { ", 0" } else { "" };
        let text = format!(
            "MAC_POLICY(sample);\nstruct settings {{ {member}; }};\nMAC_SETTINGS(struct settings);\n\
             MAC_STATEMENTS({list}({name}{rest}));\n\
             MAC_CHECK(file_open) {{ return mac_settings() ? 0 : -EACCES; }}\n"
        );
        let errors = compile(&text, &BPF).unwrap_err();
        assert!(
            errors.contains("what a statement sets is a __u32"),
            "{member}: {errors}"
        );
    }
}

// Threat model: M15
#[test]
fn what_a_module_must_not_have_is_refused_by_name() {
    let check = "MAC_CHECK(file_open) { return 0; }\n";
    for (text, reason) in [
        (
            "SEC(\"lsm/file_open\") int spy(void *context) { return 0; }",
            NotAModule::OtherProgram("lsm/file_open".into()),
        ),
        (
            "SEC(\"freplace/mac_slot_task_kill_0\") int spy(void *context) { return 0; }",
            NotAModule::OtherProgram("spy".into()),
        ),
        (
            "SEC(\"freplace/mac_slot_file_open_0\") int spy(void *context) { return 0; }",
            NotAModule::OtherProgram("spy".into()),
        ),
        (
            "SEC(\"freplace/mac_slot_file_closed_0\") int check_file_closed(void *context) { return 0; }",
            NotAModule::UnknownEntryPoint("file_closed".into()),
        ),
        (
            "ARRAY_TABLE(secrets, 1, __u64);",
            NotAModule::OtherTable("secrets".into()),
        ),
        (
            "MAC_SETTINGS(struct usher_mac_file); ARRAY_TABLE(secrets, 1, __u64);\n\
             MAC_CHECK(task_kill) { return mac_settings() ? 0 : -EPERM; }",
            NotAModule::OtherTable("secrets".into()),
        ),
        ("int count;", NotAModule::OtherSection(".bss".into())),
        ("int count = 1;", NotAModule::OtherSection(".data".into())),
        (
            "extern int bpf_spy(void) __ksym;\n\
             MAC_CHECK(task_kill) { return bpf_spy(); }",
            NotAModule::External("bpf_spy".into()),
        ),
        (
            "MAC_SETTINGS(struct usher_mac_file);\n\
             MAC_CHECK(task_kill) { return mac_settings() ? 0 : -EPERM; }",
            NotAModule::NoStatement,
        ),
        (
            "typedef struct { __u32 most; } mac_settings_type;\n\
             MAC_STATEMENTS(MAC_NUMBER(most, 1, 9, 3));",
            NotAModule::NoSettings,
        ),
        (
            "struct settings { __u32 most; };\nMAC_SETTINGS(struct settings);\n\
             MAC_STATEMENTS(MAC_NUMBER(most, 1, 9, 10));\n\
             MAC_CHECK(task_kill) { return mac_settings() ? 0 : -EPERM; }",
            NotAModule::Statements(NoStatements::Values("most".into())),
        ),
    ] {
        assert_eq!(
            refused(&format!("MAC_POLICY(sample);\n{check}{text}\n")),
            reason
        );
    }
    let by_labels = |more: &str| {
        refused(&format!(
            "MAC_POLICY(sample, .decides_by_labels = 1{more});\n{check}"
        ))
    };
    assert_eq!(by_labels(""), NotAModule::NotByLabels("labels nothing"));
    assert_eq!(
        by_labels(", .label = USHER_MAC_NUMBER"),
        NotAModule::NotByLabels(
            "does not exempt processes without an element (.exempts_without_element = 1)"
        )
    );
    assert_eq!(
        refused(&format!(
            "MAC_POLICY(sample, .label = USHER_MAC_NUMBER, .exempts_without_element = 1,\n\
             .decides_by_labels = 1);\nMAC_SETTINGS(struct usher_mac_file);\n{check}\
             MAC_CHECK(task_kill) {{ return mac_settings() ? 0 : -EPERM; }}\n"
        )),
        NotAModule::NotByLabels("has settings")
    );
    for member in [
        "exempts_without_element = 2",
        "decides_by_labels = 2",
        "reserved = 1",
    ] {
        assert_eq!(
            refused(&format!("MAC_POLICY(sample, .{member});\n{check}")),
            NotAModule::UnreadableDeclaration,
            "{member}"
        );
    }
    assert_eq!(refused(check), NotAModule::NothingDeclared);
    assert_eq!(refused("MAC_POLICY(sample);\n"), NotAModule::NoCheck);
    assert_eq!(
        refused(&format!("MAC_POLICY(Sample);\n{check}")),
        NotAModule::NotAName("Sample".into())
    );
    assert_eq!(
        refused(&format!("MAC_POLICY(sample, .label = 4096);\n{check}")),
        NotAModule::UnknownLabel(4096)
    );
    // The twins.
    for more in [
        "",
        ", .label = USHER_MAC_NUMBER, .exempts_without_element = 1, .decides_by_labels = 1",
    ] {
        let text = format!("MAC_POLICY(sample{more});\n{check}");
        Module::from_object(compiled(&text, &BPF)).unwrap();
    }
}

#[test]
fn what_is_no_object_for_bpf_is_refused() {
    let without_types = compiled(GOOD, &["-target", "bpf", "-mcpu=v3"]);
    assert_eq!(Declaration::read(&without_types), Err(NotAModule::NoTypes));
    assert_eq!(
        Declaration::read(&compiled(GOOD, &[])),
        Err(NotAModule::OtherMachine)
    );
    for bytes in [&b""[..], b"not an object", &[0x7f, b'E', b'L', b'F']] {
        let read = Declaration::read(bytes);
        assert!(matches!(read, Err(NotAModule::NotAnObject(_))), "{read:?}");
    }
    let program = std::fs::read("/bin/true").unwrap();
    assert_eq!(Declaration::read(&program), Err(NotAModule::OtherMachine));
    let mut large = good().to_vec();
    large.resize(MAX_MODULE_SIZE, 0);
    Declaration::read(&large).unwrap();
    large.push(0);
    assert_eq!(
        Declaration::read(&large),
        Err(NotAModule::TooLarge(MAX_MODULE_SIZE + 1))
    );
}

#[test]
fn names_of_a_file_are_shown_short_and_without_escapes() {
    let long = "x".repeat(300);
    // The character itself: clang 19 takes no escape sequence in the name of a section.
    let text = format!(
        "MAC_POLICY(sample);\nMAC_CHECK(file_open) {{ return 0; }}\n\
         int count __attribute__((section(\"\x1b[31m{long}\"))) = 1;"
    );
    let NotAModule::OtherSection(shown) = refused(&text) else {
        panic!("accepted");
    };
    assert_eq!(shown, format!("\\u{{1b}}[31m{}", "x".repeat(59)));
}

#[test]
fn another_interface_is_told_with_the_remedy() {
    let mut bytes = good().to_vec();
    // The interface and the size come before the name.
    let name = bytes.windows(8).position(|found| found == b"sample\0\0");
    let interface = name.unwrap() - 8;
    bytes[interface] = 200;
    let told = Declaration::read(&bytes).unwrap_err();
    assert_eq!(told, NotAModule::OtherInterface(200));
    assert!(
        told.to_string()
            .ends_with("compile it with the headers of this version")
    );
    bytes[interface] = good()[interface];
    Declaration::read(&bytes).unwrap();
    bytes[interface + 4] += 1;
    let size = Declaration::read(&bytes);
    assert_eq!(size, Err(NotAModule::UnreadableDeclaration));
}

// Threat model: M15
#[test]
fn a_truncated_object_is_refused_at_every_length() {
    // The table of sections comes last.
    for length in 0..good().len() {
        assert!(Declaration::read(&good()[..length]).is_err(), "{length}");
    }
}

#[test]
fn names_are_those_of_elements_in_labels() {
    for name in ["a", "bsdextended", "mls_2", &"a".repeat(31)] {
        assert!(is_module_name(name), "{name}");
    }
    for name in ["", "A", "2a", "_a", "a-b", "../a", "a\0", &"a".repeat(32)] {
        assert!(!is_module_name(name), "{name}");
    }
}

/// The fuzz target's inputs.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/module");

#[test]
fn the_corpus_has_the_outcomes_of_its_names() {
    let mut outcomes = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(CORPUS).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let outcome = match Declaration::read(&std::fs::read(&path).unwrap()) {
            Ok(_) => "accepted",
            Err(_) => "refused",
        };
        assert!(
            name.starts_with(outcome),
            "{name} is {outcome}; cargo test -p usher-mac --test objects -- --ignored writes it anew"
        );
        outcomes.insert(outcome);
    }
    assert_eq!(outcomes.len(), 2);
}

#[test]
#[ignore = "writes the corpus"]
fn write_the_corpus() {
    std::fs::create_dir_all(CORPUS).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = format!("{CORPUS}/{name}.bin");
        std::fs::write(&path, bytes).unwrap();
        let stripped = Command::new("llvm-strip").args(["-g", &path]).status();
        assert!(stripped.unwrap().success());
        std::fs::read(&path).unwrap()
    };
    let whole = write("accepted-two-checks", good());
    std::fs::write(
        format!("{CORPUS}/refused-cut.bin"),
        &whole[..whole.len() / 2],
    )
    .unwrap();
    write("refused-another-machine", &compiled(GOOD, &[]));
    let table = format!("{GOOD}ARRAY_TABLE(secrets, 1, __u64);");
    write("refused-table", &compiled(&table, &BPF));
    let external = "MAC_POLICY(sample);\nextern int bpf_spy(void) __ksym;\n\
                    MAC_CHECK(task_kill) { return bpf_spy(); }";
    write("refused-external", &compiled(external, &BPF));
}

proptest! {
    #[test]
    fn changed_bytes_are_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = good().to_vec();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(read) = Declaration::read(&bytes) {
            prop_assert!(is_module_name(&read.name) && !read.entry_points.is_empty());
        }
    }
}
