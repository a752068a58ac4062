//! Tests of a block whose statements depend on its name: blocks of modules, some of which are unknown.

use usher_language::{
    BlockRule, BlockText, Diagnostic, Dialect, Fields, Kind, Name, NameRule, Occurrence, Reporter,
    Setting, Shape, Source, StatementRule, Written, declared, format, parse_syntax,
};

const NAMES: NameRule = NameRule {
    noun: "block",
    rule: "a name",
    any_is_reserved: true,
};

/// A language with one block, `mac`, and the statements of one module.
fn language() -> Dialect {
    let grade = Shape::One(Kind::Number { least: 0, most: 9 });
    let biba = vec![
        StatementRule::new("grade", Occurrence::Once, grade, "the grade of new files"),
        StatementRule::new("quiet", Occurrence::AtMostOnce, Shape::Nothing, ""),
    ];
    let mac = BlockRule {
        keyword: "mac".to_owned(),
        modules: Some([("biba", biba)].into()),
        ..BlockRule::default()
    };
    Dialect {
        blocks: vec![mac],
        statements: Vec::new(),
    }
}

/// The statements of the blocks of modules that are not known, or every mistake.
fn read(text: &str) -> Result<Vec<(Name, Vec<Setting>)>, Vec<String>> {
    let dialect = language();
    let sources = [source(text)];
    let reporter = Reporter::new(&sources);
    let mut found = Vec::new();
    if let Some(tree) = parse_syntax(&dialect, &sources, &reporter) {
        for declared in declared::<Name>(&tree.blocks, "mac", &NAMES, &reporter) {
            let name = declared.name.expect("a name");
            match declared.block.rule.statements_of(Some(name.as_ref())) {
                Some(_) => drop(Fields::read(declared.block, &reporter)),
                None => found.push((name, Setting::all(declared.block, &reporter))),
            }
        }
    }
    match reporter.finish() {
        mistakes if mistakes.is_empty() => Ok(found),
        mistakes => Err(mistakes.iter().map(Diagnostic::to_string).collect()),
    }
}

fn source(text: &str) -> Source {
    Source {
        name: "mac.policy".to_owned(),
        text: text.to_owned(),
    }
}

#[test]
fn each_known_module_has_its_own_statements() {
    assert_eq!(read("mac biba { grade 3; quiet; }"), Ok(Vec::new()));
    let mistakes = read("mac biba {\n grade 10;\n range 1;\n}").expect_err("mistakes");
    assert_eq!(
        mistakes,
        [
            "mac.policy:2:8: `10` is not a number from 0 to 9",
            "mac.policy:3:2: a `mac` block has no statement `range`",
        ]
    );
    // A forgotten `;` costs one mistake: the module's keywords begin statements.
    let mistakes = read("mac biba {\n grade 3\n quiet;\n}").expect_err("a mistake");
    assert_eq!(
        mistakes,
        ["mac.policy:2:9: a `;` is missing at the end of the statement `grade`"]
    );
}

#[test]
fn statements_of_an_unknown_module_are_kept_as_written() {
    let text = "mac mls {\n  default \"low\";\n  range a b, c;\n  on;\n}\n";
    let found = read(text).expect("a text that is kept");
    let [(name, settings)] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(name.as_ref(), "mls");
    let word = |text: &str| Written::Word(text.to_owned());
    assert_eq!(settings[0].values, [[Written::Text("low".to_owned())]]);
    assert_eq!(
        settings[1].values,
        [vec![word("a"), word("b")], vec![word("c")]]
    );
    assert_eq!(settings[1].origin.place.to_string(), "mac.policy:3:3");
    assert!(settings[2].values.is_empty());
    let mut block = BlockText::new("mac", name);
    settings
        .iter()
        .for_each(|setting| block.word(&setting.to_string()));
    assert_eq!(block.end(), text);
    assert_eq!(format(&language(), &source(text)), Ok(text.to_owned()));
}

#[test]
fn mistakes_of_form_are_found_in_an_unknown_module() {
    for text in [
        "mac mls { range a,; }",
        "mac mls { on",
        "mac mls { a { b; } }",
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}
