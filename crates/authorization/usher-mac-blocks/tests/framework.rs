//! The block of the framework.

#[path = "shared/reading.rs"]
mod reading;

use reading::read;
use usher_mac_blocks::ModuleSettings;

#[test]
fn file_systems_are_read_and_printed_in_order() {
    let blocks =
        read("mac framework {\n  multilabel \"/srv\", \"/\", \"/home/my files\";\n}\n").unwrap();
    let ModuleSettings::Framework(settings) = &blocks[0].settings else {
        panic!("{blocks:?}");
    };
    assert_eq!(settings.multilabel.len(), 3);
    assert!(!blocks[0].is_of_module());
    let text = "mac framework {\n  multilabel \"/\", \"/home/my files\", \"/srv\";\n}\n";
    assert_eq!(blocks[0].to_text(), text);
    assert_eq!(read(text).unwrap()[0].settings, blocks[0].settings);
}

#[test]
fn the_specification_is_a_file_of_the_configuration() {
    let text = "mac framework {\n  specification \"/etc/usher/files.mac\";\n}\n";
    let blocks = read(text).unwrap();
    assert_eq!(blocks[0].to_text(), text);
    for path in [
        "/home/a/files.mac",
        "/etc/../home/a",
        "/etcetera",
        "files.mac",
    ] {
        let text = format!("mac framework {{ specification \"{path}\"; }}");
        let shown = read(&text).unwrap_err()[0].to_string();
        assert!(shown.contains("is no plain path below /etc"), "{shown}");
    }
}

#[test]
fn values_are_checked_while_their_module_is_not_in_force() {
    let read = |label: &str| {
        read(&format!(
            "mac framework {{ interface \"eth0\" label \"{label}\"; }}"
        ))
    };
    assert!(read("biba/65535,own/65536").is_ok());
    let shown = read("biba/65536").unwrap_err()[0].to_string();
    assert!(
        shown.contains("`biba/65536`: `65536` is not a grade"),
        "{shown}"
    );
}

#[test]
fn labels_of_interfaces_are_read_and_printed_in_order() {
    let text = "mac framework {\n  interface \"wg-home.7\" label \"test/b\";\n  interface \"eth0\" \
                label \"mls/low,biba/high\";\n  multilabel \"/srv\";\n}\n";
    let blocks = read(text).unwrap();
    let ModuleSettings::Framework(settings) = &blocks[0].settings else {
        panic!("{blocks:?}");
    };
    let found: Vec<_> = settings.interfaces.iter().collect();
    assert_eq!(found[0].0, "eth0");
    assert_eq!(found[0].1.value("mls").unwrap().as_ref(), "low");
    let text = "mac framework {\n  multilabel \"/srv\";\n  interface \"eth0\" label \
                \"biba/high,mls/low\";\n  interface \"wg-home.7\" label \"test/b\";\n}\n";
    assert_eq!(blocks[0].to_text(), text);
    assert_eq!(read(text).unwrap()[0].settings, blocks[0].settings);
}

#[test]
fn families_of_sockets_are_read_and_printed_in_order() {
    let blocks = read("mac framework {\n  families vsock, packet;\n}\n").unwrap();
    let ModuleSettings::Framework(settings) = &blocks[0].settings else {
        panic!("{blocks:?}");
    };
    assert_eq!(settings.family_numbers(), [17, 40].into());
    let text = "mac framework {\n  families packet, vsock;\n}\n";
    assert_eq!(blocks[0].to_text(), text);
    assert_eq!(read(text).unwrap()[0].settings, blocks[0].settings);
}

#[test]
fn sixty_four_interfaces_are_permitted_and_no_more() {
    let of = |count: usize| {
        let lines = (0..count).map(|number| format!("interface \"eth{number}\" label \"a/x\";\n"));
        read(&format!(
            "mac framework {{\n{}}}\n",
            lines.collect::<String>()
        ))
    };
    assert_eq!(of(64).unwrap()[0].settings.lines().len(), 64);
    let shown = of(65).unwrap_err()[0].to_string();
    assert!(
        shown.starts_with("mac.policy:66:1: this interface is one more"),
        "{shown}"
    );
}

#[test]
fn a_block_without_file_systems_is_permitted() {
    let blocks = read("mac framework {\n}\n").unwrap();
    assert!(blocks[0].settings.lines().is_empty());
}

#[test]
fn each_mistake_of_the_framework_has_its_place() {
    let many: Vec<_> = (0..17).map(|number| format!("\"/{number}\"")).collect();
    let many = format!("multilabel {};", many.join(", "));
    for (statement, place, told) in [
        ("multilabel \"srv\";", "2:12", "no plain absolute path"),
        ("multilabel \"/srv/\";", "2:12", "no plain absolute path"),
        ("multilabel \"/srv\", \"/srv\";", "2:20", "listed"),
        ("multilabel;", "2:1", "`multilabel`"),
        (
            "multilabel \"/a\"; multilabel \"/b\";",
            "2:18",
            "multilabel",
        ),
        ("rule mode n;", "2:1", "rule"),
        ("interface \"eth0\";", "2:1", "`interface`"),
        ("interface \"eth0\" \"a/x\";", "2:18", "a/x"),
        ("interface eth0 label \"a/x\";", "2:11", "eth0"),
        (
            "interface \"\" label \"a/x\";",
            "2:11",
            "no name of a network interface",
        ),
        (
            "interface \"eth:0\" label \"a/x\";",
            "2:11",
            "no name of a network interface",
        ),
        (
            "interface \"interface-name16\" label \"a/x\";",
            "2:11",
            "no name of a network",
        ),
        (
            "interface \"eth0\" label \"a\";",
            "2:24",
            "at byte 1 of the label: the element `a` has no value",
        ),
        (
            "interface \"eth0\" label \"a/x,a/y\";",
            "2:24",
            "at byte 5 of the label: the element `a` stands",
        ),
        (
            "interface \"eth0\" label \"a/x\"; interface \"eth0\" label \"a/x\";",
            "2:41",
            "listed",
        ),
        ("families unix;", "2:10", "unix"),
        ("families vsock, vsock;", "2:17", "listed"),
        (&many, "2:1", "17"),
    ] {
        let found = read(&format!("mac framework {{\n{statement}\n}}\n")).unwrap_err();
        let shown = found[0].to_string();
        assert!(
            shown.starts_with(&format!("mac.policy:{place}: ")),
            "{shown}"
        );
        assert!(shown.contains(told), "{shown}");
    }
}

#[test]
fn sixteen_file_systems_are_permitted() {
    let paths: Vec<_> = (0..16).map(|number| format!("\"/{number}\"")).collect();
    let text = format!("mac framework {{ multilabel {}; }}", paths.join(", "));
    assert_eq!(read(&text).unwrap().len(), 1);
}
