//! A dialect that is made at run time from data is read, checked and printed like one that is
//! compiled in.

use usher_language::{
    BlockRule, BlockText, Checked, DeclarationFault, Diagnostic, Dialect, Fields, Modules, Name,
    NameRule, Reporter, Setting, Source, StatementRule, declared, format, module_settings, parse,
};

const NAMES: NameRule = NameRule {
    noun: "block",
    rule: "a name",
    any_is_reserved: true,
};

/// The declaration of a loaded module's statements.
const BIBA: &str = r#"[
    { "keyword": "grade", "occurrence": "once", "about": "the grade of new files",
      "shape": { "one": { "number": { "least": 0, "most": 65535 } } } },
    { "keyword": "mode", "shape": { "one": { "choice": ["enforce", "report"] } } },
    { "keyword": "trusted", "occurrence": "any", "shape": { "list": "name" }, "beside": "mode enforce" },
    { "keyword": "lowest", "occurrence": "at_least_once", "needs": "labels",
      "shape": { "phrase": [ { "word": "of" }, { "value": { "text": "\"PATH\"" } },
                             { "optional": [ "for", { "duration": { "least": 1, "most": 3600 } } ] } ] } },
    { "keyword": "quiet" },
    { "keyword": "buffer", "shape": { "one": { "size": { "least": 1024, "most": 1048576 } } } }
]"#;

fn statements(text: &str) -> Vec<StatementRule> {
    serde_json::from_str(text).expect("a module's declaration")
}

/// A language with one block, `mac`, whose statements modules declare.
fn language() -> Dialect {
    let mac = BlockRule {
        keyword: "mac".to_owned(),
        modules: Some(Modules::default()),
        ..BlockRule::default()
    };
    Dialect {
        blocks: vec![mac],
        statements: Vec::new(),
    }
}

fn with_biba() -> Dialect {
    let mut dialect = language();
    dialect
        .declare("mac", "biba", statements(BIBA))
        .expect("a sound declaration");
    dialect
}

fn source(text: &str) -> Source {
    Source {
        name: "mac.policy".to_owned(),
        text: text.to_owned(),
    }
}

/// The settings of all blocks by their modules' names, or every mistake.
fn read(dialect: &Dialect, text: &str) -> Result<Vec<(Name, Vec<Setting>)>, Vec<Diagnostic>> {
    let sources = [source(text)];
    let reporter = Reporter::new(&sources);
    let mut found = Vec::new();
    if let Some(tree) = parse(dialect, &sources, &reporter) {
        for declared in declared::<Name>(&tree.blocks, "mac", &NAMES, &reporter) {
            let modules = declared
                .block
                .rule
                .modules
                .as_ref()
                .expect("a block of modules");
            let settings = module_settings(declared.block, modules, &reporter);
            found.extend(declared.name.zip(settings));
        }
    }
    match reporter.finish() {
        mistakes if mistakes.is_empty() => Ok(found),
        mistakes => Err(mistakes),
    }
}

fn mistakes(text: &str) -> Vec<(String, String)> {
    let mistakes = read(&with_biba(), text).expect_err("a text with mistakes");
    mistakes
        .iter()
        .map(|mistake| (mistake.to_string(), mistake.remedy()))
        .collect()
}

const SOUND: &str = "mac biba { grade 10; mode enforce; trusted init, sshd;\n lowest of \"/tmp\"; \
                     lowest of \"/var\" for 90s; quiet; buffer 2048K; }";

#[test]
fn statements_of_a_module_are_read_as_data() {
    let found = read(&with_biba(), &SOUND.replace("2048K", "512K")).expect("a sound text");
    let [(name, settings)] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(name.as_ref(), "biba");
    let values: Vec<_> = settings
        .iter()
        .map(|one| (one.keyword.as_str(), &one.values))
        .collect();
    assert_eq!(
        values[0],
        ("grade", &vec![vec![Checked::Number(10, "10".to_owned())]])
    );
    let word = |word: &str| Checked::Word(word.to_owned());
    assert_eq!(
        values[2],
        ("trusted", &vec![vec![word("init")], vec![word("sshd")]])
    );
    let lowest = vec![
        word("of"),
        Checked::Text("/var".to_owned()),
        word("for"),
        Checked::Number(90, "90s".to_owned()),
    ];
    assert_eq!(values[4], ("lowest", &vec![lowest]));
    assert_eq!(values[5], ("quiet", &vec![]));
    assert_eq!(
        values[6].1[0][0],
        Checked::Number(512 << 10, "512K".to_owned())
    );
}

#[test]
fn a_modules_block_prints_canonically_and_reads_back() {
    let dialect = with_biba();
    let text = SOUND.replace("2048K", "1024K");
    let canonical = "mac biba {\n  grade 10;\n  mode enforce;\n  trusted init, sshd;\n  lowest of \
                     \"/tmp\";\n  lowest of \"/var\" for 90s;\n  quiet;\n  buffer 1M;\n}\n";
    let found = read(&dialect, &text).expect("a sound text");
    let mut block = BlockText::new("mac", &found[0].0);
    found[0]
        .1
        .iter()
        .for_each(|setting| setting.print(&mut block));
    assert_eq!(block.end(), canonical);
    assert_eq!(read(&dialect, canonical).as_ref(), Ok(&found));
    // The form that keeps comments.
    let formatted = format(&dialect, &source(&text)).expect("a text without mistakes of form");
    assert_eq!(formatted, canonical.replace("1M", "1024K"));
    assert_eq!(
        format(&dialect, &source(canonical)),
        Ok(canonical.to_owned())
    );
}

#[test]
fn mistakes_in_a_modules_block_have_places_and_remedies() {
    let told = |text: &str, remedy: &str| (format!("mac.policy:{text}"), remedy.to_owned());
    assert_eq!(
        mistakes(
            "mac biba {\n  grade 65536;\n  mode enforced;\n  trusted any;\n  lowest of /tmp;\n}"
        ),
        [
            told(
                "2:9: `65536` is not a number from 0 to 65535",
                "write a number from 0 to 65535"
            ),
            told(
                "3:8: `enforced` is not one of enforce, report",
                "write enforce or report"
            ),
            told(
                "4:11: `any` cannot be the name of a block",
                "the name of a block is a letter or digit, then letters, digits, `_`, `.` or `-`, at \
                 most 32 in all, and not `any`"
            ),
            told(
                "5:13: `/tmp` must be a string",
                "put it between `\"` and `\"`"
            ),
        ]
    );
    assert_eq!(
        mistakes("mac biba {\n  mode report;\n  mode report;\n  trusted init;\n  grad 1;\n}"),
        [
            told(
                "1:1: the `mac` block does not say `grade`",
                "add `grade NUMBER;`: the grade of new files"
            ),
            told(
                "1:1: the `mac` block does not say `lowest`",
                "add `lowest of \"PATH\" [for 10m];`"
            ),
            told(
                "3:3: `mode` stands a second time in this block; the first is at mac.policy:2:3",
                "make one statement of the two"
            ),
            told(
                "4:3: `trusted` has no meaning with `mode report`",
                "remove `trusted`; it is for `mode enforce`"
            ),
            told(
                "5:3: a `mac` block has no statement `grad`",
                "did you mean `grade`? otherwise a `mac` block has grade, mode, trusted, lowest, \
                 quiet, buffer"
            ),
        ]
    );
    // A forgotten `;` costs one mistake: the module's keywords begin statements.
    assert_eq!(
        mistakes("mac biba {\n  grade 10\n  lowest of \"/\";\n}"),
        [told(
            "2:11: a `;` is missing at the end of the statement `grade`",
            "write `;` here"
        )]
    );
    assert_eq!(
        mistakes("mac bibba { }"),
        [told(
            "1:5: no module `bibba` declares statements for a `mac` block",
            "did you mean `biba`? otherwise load the module, or remove the block"
        )]
    );
}

#[test]
fn an_open_block_keeps_what_no_module_declares() {
    let mut open = with_biba();
    open.blocks[0].modules.as_mut().expect("modules").open = true;
    let text = "mac mls {\n  default \"low\";\n  range a b, c;\n  on;\n}\n";
    let found = read(&open, text).expect("a text that is kept");
    let mut block = BlockText::new("mac", &found[0].0);
    found[0]
        .1
        .iter()
        .for_each(|setting| setting.print(&mut block));
    assert_eq!(block.end(), text);
    assert!(read(&with_biba(), text).is_err());
    assert!(read(&open, "mac biba { }").is_err());
}

#[test]
fn a_declaration_that_no_text_could_follow_is_refused() {
    let fault = |block: &str, module: &str, text: &str| {
        let mut dialect = with_biba();
        let declared = dialect.declare(block, module, statements(text));
        let known = dialect.blocks[0]
            .modules
            .as_ref()
            .expect("modules")
            .declared
            .len();
        assert_eq!(known, 1 + usize::from(declared.is_ok()));
        declared.err()
    };
    let with = |statement: &str| fault("mac", "mls", &format!("[{statement}]"));
    let keyword = || "a".to_owned();
    assert_eq!(with(r#"{ "keyword": "a" }"#), None);
    assert_eq!(
        fault("host", "mls", "[]"),
        Some(DeclarationFault::NoSuchBlock {
            block: "host".to_owned()
        })
    );
    assert_eq!(
        fault("mac", "any", "[]"),
        Some(DeclarationFault::InvalidModule {
            module: "any".to_owned()
        })
    );
    assert_eq!(
        fault("mac", "biba", "[]"),
        Some(DeclarationFault::DeclaredTwice {
            module: "biba".to_owned()
        })
    );
    let many: Vec<String> = (0..257)
        .map(|number| format!(r#"{{ "keyword": "a{number}" }}"#))
        .collect();
    assert_eq!(
        with(&many.join(",")),
        Some(DeclarationFault::TooMany { found: 257 })
    );
    assert_eq!(with(&many[..256].join(",")), None);
    for wrong in ["", "mac", "A", "1a", "a b", "a;", "a=", &"a".repeat(33)] {
        let keyword = wrong.to_owned();
        let declared = with(&format!(r#"{{ "keyword": "{wrong}" }}"#));
        assert_eq!(declared, Some(DeclarationFault::InvalidKeyword { keyword }));
    }
    assert_eq!(
        with(r#"{ "keyword": "a" }, { "keyword": "a" }"#),
        Some(DeclarationFault::RepeatedKeyword { keyword: keyword() })
    );
    for shape in [
        r#"{ "one": { "number": { "least": 2, "most": 1 } } }"#,
        r#"{ "list": { "choice": [] } }"#,
        r#"{ "one": { "choice": ["a;b"] } }"#,
        r#"{ "phrase": [] }"#,
        r#"{ "phrase": [ { "word": "" } ] }"#,
    ] {
        let declared = with(&format!(r#"{{ "keyword": "a", "shape": {shape} }}"#));
        assert_eq!(
            declared,
            Some(DeclarationFault::NoValues { keyword: keyword() }),
            "{shape}"
        );
    }
    assert_eq!(
        with(r#"{ "keyword": "a", "beside": "b c" }"#),
        Some(DeclarationFault::UnknownBeside {
            keyword: keyword(),
            beside: "b c".to_owned()
        })
    );
    // A declaration with a part that this version does not know is refused.
    let unknown = serde_json::from_str::<StatementRule>(r#"{ "keyword": "a", "twice": true }"#);
    assert!(unknown.is_err());
}

#[test]
fn fields_of_a_block_are_what_its_table_says() {
    let dialect = with_biba();
    let sources = [source(SOUND)];
    let reporter = Reporter::new(&sources);
    let tree = parse(&dialect, &sources, &reporter).expect("a text within the limits");
    let fields = Fields::read(&tree.blocks[0], &reporter);
    assert_eq!(fields.number::<u16>("grade"), Some(10));
    assert_eq!(fields.word("mode"), Some("enforce"));
    assert_eq!(fields.all("lowest").count(), 2);
    // 2048K is beyond the limit: reported, and not there.
    assert_eq!(fields.number::<u64>("buffer"), None);
    assert_eq!(reporter.finish().len(), 1);
}

#[test]
fn a_text_tells_what_it_needs_to_be_enforced() {
    let mut dialect = with_biba();
    dialect.blocks[0].needs = Some("the MAC framework");
    let sources = [source("mac biba { grade 1;\n lowest of \"/\"; }")];
    let reporter = Reporter::new(&sources);
    let tree = parse(&dialect, &sources, &reporter).expect("a text within the limits");
    let needs = tree.needs(&reporter).into_iter();
    let told = needs.map(|need| format!("{}: {} needs {}", need.place, need.says, need.needs));
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            "mac.policy:1:1: `mac biba` needs the MAC framework",
            "mac.policy:2:2: `lowest` of `mac biba` needs labels"
        ]
    );
}
