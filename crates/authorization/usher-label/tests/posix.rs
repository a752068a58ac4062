//! Patterns of specifications beside grep(1), which has the C library's POSIX extended regular expressions.

use std::io::Write;
use std::process::{Command, Stdio};

use usher_label::{FileKind, Flavour, Specification};
use usher_language::Source;

fn read(pattern: &str) -> Result<Specification, String> {
    let source = Source {
        name: "specs".to_owned(),
        text: format!("{pattern} biba/low\n"),
    };
    let read = Specification::parse(source, Flavour::Labels);
    read.map_err(|found| found[0].to_string())
}

/// The texts among these that the pattern matches as a whole, by grep in the POSIX locale.
fn by_grep(pattern: &str, texts: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut grep = Command::new("grep")
        .args(["-Exz", "-e", pattern])
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = texts.join(&0);
    input.push(0);
    grep.stdin.take().unwrap().write_all(&input).unwrap();
    let output = grep.wait_with_output().unwrap();
    assert!(output.status.code() < Some(2), "{pattern}: {output:?}");
    let matched = output.stdout.split(|byte| *byte == 0);
    let mut matched: Vec<Vec<u8>> = matched.map(<[u8]>::to_vec).collect();
    // After the last zero there is no further text.
    matched.pop();
    matched
}

/// Texts of one byte, and longer ones.
fn texts() -> Vec<Vec<u8>> {
    let mut texts: Vec<Vec<u8>> = (1..=u8::MAX).map(|byte| vec![byte]).collect();
    let longer = [
        "ab", "aa", "aaa", "aaaa", "abab", "a.b", "a&&b", "a]", "a-", "d", "/a/b", "/srv/x y", "é",
        "éé", "a{2}", "a\nb", "(a)", "[a]", "a|b", "a+", "f%-", "-]", "^a", "a$", "xa", "foo.conf",
        "foo~",
    ];
    texts.extend(longer.iter().map(|text| text.as_bytes().to_vec()));
    texts
}

#[test]
fn patterns_match_what_the_c_library_matches() {
    let texts = texts();
    for pattern in [
        r"[%--]",
        "[a&&b]",
        r"[\d]",
        "[[.a.]]",
        "[[.-.]a]",
        "[[.].]]",
        "[[=a=]b]",
        "[]a]",
        "[^]a]",
        "[a-]",
        "[--/]",
        "[a[b]",
        "[[:alpha:]_]",
        "[[:space:]]",
        "[[:punct:]]",
        "[[:cntrl:]]",
        "[[:print:]]",
        "[[:graph:]]",
        "[^/]",
        "[^a-y]",
        "[[:xdigit:]-]",
        "[[:blank:][:digit:]]",
        "[[:upper:]]",
        "[[:lower:]]",
        "[[:alnum:]]",
        "[~~]",
        "[a--]x|[%-+]",
        "a{2}",
        "a{2,}",
        "a{1,3}",
        "(ab){2}",
        "a{2}|b",
        "é",
        ".",
        "..",
        ".*",
        "/a(/.*)?",
        "/srv/[^/]+",
        "a|b",
        "(a|b)+",
        "^a",
        "a$",
        "^(a|b)$",
        "x^a|a",
        r"\(a\)",
        r"\[a]",
        r"a\{2\}",
        r"a\|b",
        r"a\+",
        r"a\.b",
        r"\/a\/b",
        r"f\%\-",
        "a}",
        "a]",
        r"\^a",
        r"a\$",
        "-]",
        ".*\\.conf",
        ".*~",
        "a{0}",
        "(a){0,1}b?",
        "[[.[.]]a[]]",
    ] {
        let Ok(read) = read(pattern) else {
            // The range ends before it begins, for grep as well.
            assert!(pattern.contains("[a--]"), "{pattern}");
            continue;
        };
        let matched = texts
            .iter()
            .filter(|text| read.find(text, FileKind::Regular).is_some());
        let matched: Vec<Vec<u8>> = matched.cloned().collect();
        assert_eq!(matched, by_grep(pattern, &texts), "{pattern}");
    }
}

#[test]
fn a_character_of_several_bytes_is_repeated_as_one() {
    // grep in the POSIX locale would repeat only the last byte of `é`.
    let read = read("é{2}").unwrap();
    let matches = |text: &str| read.find(text.as_bytes(), FileKind::Regular).is_some();
    assert!(matches("éé") && !matches("é"));
}

#[test]
fn what_posix_does_not_define_is_refused_by_name() {
    for (pattern, told) in [
        (
            r"/a\d",
            r"specs:1:3: the pattern is not a regular expression: `\d` is not of POSIX: write `d`",
        ),
        (r"\w", r"`\w` is not of POSIX"),
        (r"\<a", r"`\<` is not of POSIX, and libraries differ in it"),
        (r"a\", r"`\` at the end escapes nothing"),
        (
            "a+?",
            "specs:1:3: the pattern is not a regular expression: `?` repeats a repetition",
        ),
        ("a**", "`*` repeats a repetition"),
        ("*a", "`*` repeats nothing"),
        ("(?i)a", "`?` repeats nothing"),
        ("^*a", "`*` repeats nothing"),
        ("a|", "an alternative is empty"),
        ("()", "an alternative is empty"),
        (
            "a(b",
            "specs:1:2: the pattern is not a regular expression: the group is not closed",
        ),
        ("a)", "`)` closes no group"),
        ("a{,3}", "`{` begins no number of repetitions"),
        ("a{3,2}", "`{` begins no number of repetitions"),
        ("a{256}", "`{` begins no number of repetitions"),
        ("a{x", "`{` begins no number of repetitions"),
        ("[a", "the bracket expression is not closed"),
        ("[]", "the bracket expression is not closed"),
        ("[z-a]", "the range `z-a` ends before it begins"),
        ("[a-c-e]", "the end of a range begins another one"),
        ("[[:alpha:]-z]", "`[:alpha:]` begins a range"),
        ("[a-[:digit:]]", "a class is the end of a range"),
        ("[[:word:]]", "`[:word:]` is no class of POSIX"),
        (
            "[[.hyphen.]]",
            "a collating element has more than one character",
        ),
        ("[é]", "`é` is more than one byte"),
    ] {
        let found = read(pattern).unwrap_err();
        assert!(found.contains(told), "{pattern}: {found}");
    }
}
