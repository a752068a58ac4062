//! Files of setfsmac: the labels of paths.
//!
//! A line is `PATTERN [KIND] LABEL`. A pattern is a POSIX extended regular expression for a whole path. The
//! last line of a file that matches decides; where several files are given, each decides for itself,
//! and their labels are merged in the order of the files, as setfsmac(8) of FreeBSD has it.
//!
//! Patterns are matched without backtracking, in time linear in the length of the path, whoever made
//! the path. A path is bytes: `.` and `[^x]` match every byte, a line feed and a byte outside UTF-8
//! included, so that no file name escapes a pattern that is meant for all.

use std::collections::BTreeMap;

use regex::bytes::{RegexBuilder, RegexSet, RegexSetBuilder};
use usher_language::{Diagnostic, Found, Reporter, Source, Span, shown};

use crate::defaults::{at, begin, length_mistake, within};
use crate::label::Label;
use crate::limits::{
    MAXIMUM_ELEMENTS, MAXIMUM_PATTERN_MEMORY, MAXIMUM_SPECIFICATIONS, MAXIMUM_TEXT,
};
use crate::mistake::{LabelMistake, SpecificationMistake};
use crate::posix::{self, PatternMistake};
use crate::value::ElementName;
use crate::words::{numbered_lines, words};

/// Longest reason of a mistake in a pattern, in characters.
const MOST_OF_REASON: usize = 200;

/// The form of a file's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Whole labels: `biba/high,mls/low` (`setfsmac -f`).
    Labels,
    /// SELinux's contexts, which become values of the element `sebsd`, with `+` for commas; `<<none>>` leaves a
    /// file as it is (`setfsmac -s`).
    Contexts,
}

/// Kinds of files, as stat(2) tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// `--`
    Regular,
    /// `-d`
    Directory,
    /// `-l`
    Link,
    /// `-b`
    BlockDevice,
    /// `-c`
    CharacterDevice,
    /// `-p`
    Pipe,
    /// `-s`
    Socket,
}

impl FileKind {
    fn of_flag(flag: &str) -> Option<Self> {
        Some(match flag {
            "--" => Self::Regular,
            "-d" => Self::Directory,
            "-l" => Self::Link,
            "-b" => Self::BlockDevice,
            "-c" => Self::CharacterDevice,
            "-p" => Self::Pipe,
            "-s" => Self::Socket,
            _ => return None,
        })
    }
}

/// One line of a file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Line of the file, counted from 1.
    pub line: usize,
    /// The pattern, as it was written.
    pub pattern: String,
    /// The pattern in the syntax of `regex`.
    translated: String,
    /// Matches this kind of file only.
    pub kind: Option<FileKind>,
    /// `None` for `<<none>>`: a file that matches keeps its label.
    pub label: Option<Label>,
}

impl Entry {
    /// The only path that the pattern matches, if none of its characters is special except escaped dots.
    pub fn literal(&self) -> Option<String> {
        let plain = self.pattern.replace("\\.", "");
        let is_plain = |one: char| !"\\.[]()*+?{}|^$".contains(one);
        plain
            .chars()
            .all(is_plain)
            .then(|| self.pattern.replace("\\.", "."))
    }
}

/// A file of specifications.
#[derive(Clone, Debug)]
pub struct Specification {
    name: String,
    entries: Vec<Entry>,
    patterns: RegexSet,
}

impl Specification {
    /// Reads a whole file.
    ///
    /// # Errors
    ///
    /// All mistakes, with their places; nothing of such a file is used.
    pub fn parse(source: Source, flavour: Flavour) -> Result<Self, Vec<Diagnostic>> {
        let sources = [source];
        let reporter = Reporter::new(&sources);
        let entries = read_entries(&sources[0].text, flavour, &reporter);
        let patterns = entries.and_then(|entries| Some((compile(&entries, &reporter)?, entries)));
        let found = reporter.finish();
        match patterns {
            Some((patterns, entries)) if found.is_empty() => {
                let [source] = sources;
                Ok(Self {
                    name: source.name,
                    entries,
                    patterns,
                })
            }
            _ => Err(found),
        }
    }

    /// The name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The lines, in their order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The line that decides for a file: the last one that matches.
    pub fn find(&self, path: &[u8], kind: FileKind) -> Option<&Entry> {
        let matching = self.patterns.matches(path);
        let mut matching = matching.iter().map(|index| &self.entries[index]);
        matching.rfind(|entry| entry.kind.is_none_or(|wanted| wanted == kind))
    }
}

/// Several files, which label together.
#[derive(Clone, Debug)]
pub struct SpecificationSet {
    specifications: Vec<Specification>,
}

/// The lines that decide for a file, and the label that they make.
#[derive(Clone, Debug)]
pub struct Match<'s> {
    /// One line at most of each file that has one.
    pub entries: Vec<(&'s Specification, &'s Entry)>,
    /// The merged labels of these lines; `None` when no line matches, or each of them says `<<none>>`.
    pub label: Option<Label>,
}

impl SpecificationSet {
    /// Puts files together.
    ///
    /// # Errors
    ///
    /// Their labels could together exceed the limits of a label.
    pub fn new(specifications: Vec<Specification>) -> Result<Self, LabelMistake> {
        let mut longest: BTreeMap<&ElementName, usize> = BTreeMap::new();
        let entries = specifications.iter().flat_map(|file| &file.entries);
        for (name, value) in entries
            .filter_map(|entry| entry.label.as_ref())
            .flat_map(Label::elements)
        {
            let length = longest.entry(name).or_default();
            *length = value.as_ref().len().max(*length);
        }
        let count = longest.len();
        if count > MAXIMUM_ELEMENTS {
            return Err(LabelMistake::TooManyElements { count });
        }
        let length = longest
            .iter()
            .map(|(name, length)| name.as_ref().len() + 2 + length)
            .sum();
        if specifications.len() > 1 && length > MAXIMUM_TEXT + 1 {
            return Err(LabelMistake::TooLong { length });
        }
        Ok(Self { specifications })
    }

    /// The files.
    pub fn specifications(&self) -> &[Specification] {
        &self.specifications
    }

    /// Returns the entries that match a file, and the label that they make together.
    pub fn decide(&self, path: &[u8], kind: FileKind) -> Match<'_> {
        let found = self.specifications.iter();
        let entries: Vec<_> = found
            .filter_map(|file| Some((file, file.find(path, kind)?)))
            .collect();
        let labels = entries.iter().filter_map(|(_, entry)| entry.label.as_ref());
        let label = labels.fold(None, |whole: Option<Label>, next| match whole {
            None => Some(next.clone()),
            // Within the limits: `new` has added up the longest.
            Some(whole) => whole.with(next).ok(),
        });
        Match { entries, label }
    }
}

fn read_entries(text: &str, flavour: Flavour, reporter: &Reporter<'_>) -> Option<Vec<Entry>> {
    if let Some(too_long) = length_mistake(text) {
        return reporter.refuse(begin(), too_long);
    }
    let (mut entries, mut count) = (Vec::new(), 0);
    for (index, (offset, line)) in numbered_lines(text).enumerate() {
        let words = words(offset, line);
        if words.first().is_none_or(|(_, word)| word.starts_with('#')) {
            continue;
        }
        if count == MAXIMUM_SPECIFICATIONS {
            return reporter.refuse(at(words[0].0), SpecificationMistake::TooMany);
        }
        count += 1;
        entries.extend(read_line(
            index + 1,
            (offset, line),
            &words,
            flavour,
            reporter,
        ));
        if reporter.is_full() {
            return None;
        }
    }
    Some(entries)
}

fn read_line(
    number: usize,
    (offset, line): (usize, &str),
    words: &[(Span, &str)],
    flavour: Flavour,
    reporter: &Reporter<'_>,
) -> Option<Entry> {
    if let Some(place) = line.find(|one: char| one.is_control() && one != '\t') {
        let code = line[place..].chars().next().map_or(0, u32::from);
        let (offset, length) = (offset + place, 1);
        let mistake = SpecificationMistake::Invisible { code };
        return reporter.refuse(at(Span { offset, length }), mistake);
    }
    let (pattern, kind, label) = match words {
        [pattern, label] => (*pattern, None, *label),
        [pattern, (span, flag), label] => {
            let Some(kind) = FileKind::of_flag(flag) else {
                let found = Found::from(*flag);
                return reporter.refuse(at(*span), SpecificationMistake::UnknownKind { found });
            };
            (*pattern, Some(kind), *label)
        }
        [_, _, _, (span, word), ..] => {
            let found = Found::from(*word);
            return reporter.refuse(at(*span), SpecificationMistake::TooManyWords { found });
        }
        [(span, _)] => return reporter.refuse(at(*span), SpecificationMistake::NoLabel),
        [] => return None,
    };
    let label = match (flavour, label) {
        (Flavour::Contexts, (_, "<<none>>")) => None,
        // Commas divide the elements of a label.
        (Flavour::Contexts, (span, context)) => {
            match format!("sebsd/{}", context.replace(',', "+")).parse::<Label>() {
                Ok(label) => Some(label),
                Err(error) => return reporter.refuse(at(span), error.mistake),
            }
        }
        (Flavour::Labels, (span, text)) => match text.parse::<Label>() {
            Ok(label) => match label.check_values() {
                Ok(()) => Some(label),
                Err((_, mistake)) => return reporter.refuse(at(span), mistake),
            },
            Err(error) => return reporter.refuse(within(span, error.span), error.mistake),
        },
    };
    let translated = check_pattern(pattern, reporter)?;
    Some(Entry {
        line: number,
        pattern: pattern.1.to_owned(),
        translated,
        kind,
        label,
    })
}

/// Translates a pattern for `regex`. Refuses a text that is no pattern, or that alone is too large.
fn check_pattern((span, pattern): (Span, &str), reporter: &Reporter<'_>) -> Option<String> {
    let translated = match posix::translated(pattern) {
        Ok(translated) => translated,
        Err(PatternMistake { offset, reason }) => {
            let reason = shown(MOST_OF_REASON, &reason);
            let (offset, length) = (span.offset + offset, 1);
            let mistake = SpecificationMistake::InvalidPattern { reason };
            return reporter.refuse(at(Span { offset, length }), mistake);
        }
    };
    let mut alone = RegexBuilder::new(&translated);
    alone.unicode(false).size_limit(MAXIMUM_PATTERN_MEMORY / 64);
    match alone.build() {
        Ok(_) => Some(translated),
        Err(error) => reporter.refuse(at(span), pattern_mistake(&error)),
    }
}

fn compile(entries: &[Entry], reporter: &Reporter<'_>) -> Option<RegexSet> {
    let whole = entries
        .iter()
        .map(|entry| format!("^(?:{})$", entry.translated));
    let mut set = RegexSetBuilder::new(whole);
    set.unicode(false)
        .dot_matches_new_line(true)
        .size_limit(MAXIMUM_PATTERN_MEMORY);
    match set.build() {
        Ok(set) => Some(set),
        Err(error) => reporter.refuse(begin(), pattern_mistake(&error)),
    }
}

fn pattern_mistake(error: &regex::Error) -> SpecificationMistake {
    match error {
        regex::Error::CompiledTooBig(_) => SpecificationMistake::PatternTooLarge,
        error => {
            // Only the last line: those before it show the pattern, as the place of the mistake does.
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            let reason = shown(MOST_OF_REASON, last.trim_start_matches("error: "));
            SpecificationMistake::InvalidPattern { reason }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, flavour: Flavour) -> Result<Specification, Vec<Diagnostic>> {
        let source = Source {
            name: "specs".to_owned(),
            text: text.to_owned(),
        };
        Specification::parse(source, flavour)
    }

    fn labels(text: &str) -> Specification {
        parse(text, Flavour::Labels).unwrap()
    }

    fn found(file: &Specification, path: &[u8]) -> Option<usize> {
        file.find(path, FileKind::Regular).map(|entry| entry.line)
    }

    #[test]
    fn the_last_matching_line_decides() {
        let file = labels("# all\n.* biba/low\n\n/etc(/.*)? biba/high\n/etc/motd\tbiba/equal\n");
        assert_eq!(found(&file, b"/etc/motd"), Some(5));
        assert_eq!(found(&file, b"/etc"), Some(4));
        assert_eq!(found(&file, b"/etcetera"), Some(2));
    }

    #[test]
    fn a_pattern_matches_the_whole_path() {
        let file = labels("/a|/b biba/low\n");
        assert_eq!(found(&file, b"/a"), Some(1));
        assert_eq!(found(&file, b"/b"), Some(1));
        assert_eq!(found(&file, b"/ac"), None);
        assert_eq!(found(&file, b"/x/b"), None);
    }

    // Threat model: M114
    #[test]
    fn no_byte_of_a_name_escapes_a_pattern_for_all() {
        let file = labels("/home/.* biba/low\n/srv/[^/]+ biba/low\n");
        for name in [&b"\n"[..], b"a\nb", b"\xff\xfe", b"\x01", "é".as_bytes()] {
            for folder in ["/home/", "/srv/"] {
                let path = [folder.as_bytes(), name].concat();
                assert!(found(&file, &path).is_some(), "{path:?}");
            }
        }
        assert_eq!(found(&file, b"/srv/a/b"), None);
        assert_eq!(found(&labels("/é biba/low"), "/é".as_bytes()), Some(1));
    }

    #[test]
    fn a_kind_restricts_a_line() {
        let file = labels("/d.* biba/low\n/d.* -d biba/high\n/d.* -- biba/equal\n");
        let line = |kind| file.find(b"/dir", kind).unwrap().line;
        assert_eq!(line(FileKind::Directory), 2);
        assert_eq!(line(FileKind::Regular), 3);
        for other in [
            FileKind::Link,
            FileKind::BlockDevice,
            FileKind::CharacterDevice,
            FileKind::Pipe,
            FileKind::Socket,
        ] {
            assert_eq!(line(other), 1);
        }
    }

    #[test]
    fn contexts_become_values_of_sebsd() {
        let text = "/etc(/.*)?\tsystem_u:object_r:etc_t:s0-s0:c0.c1023\n/etc/x -- <<none>>\n";
        let file = parse(text, Flavour::Contexts).unwrap();
        let label = |path: &[u8]| file.find(path, FileKind::Regular).unwrap().label.clone();
        let expected = "sebsd/system_u:object_r:etc_t:s0-s0:c0.c1023";
        assert_eq!(label(b"/etc/motd").unwrap().to_string(), expected);
        assert_eq!(label(b"/etc/x"), None);
        // Commas divide the elements of a label.
        let file = parse("/srv system_u:object_r:srv_t:s0:c1,c2\n", Flavour::Contexts).unwrap();
        let label = file.entries()[0].label.clone().unwrap().to_string();
        assert_eq!(label, "sebsd/system_u:object_r:srv_t:s0:c1+c2");
        assert!(parse("/etc/x <<none>>\n", Flavour::Labels).is_err());
    }

    #[test]
    fn a_file_without_a_specification_matches_nothing() {
        for text in ["", "# nothing\n\n"] {
            for flavour in [Flavour::Labels, Flavour::Contexts] {
                let file = parse(text, flavour).unwrap();
                assert_eq!(found(&file, b"/"), None);
            }
        }
    }

    #[test]
    fn a_pattern_without_special_characters_is_a_path() {
        let paths = [
            r"/usr/sbin/nginx",
            r"/lib/a\.so\.1",
            "/a.b",
            "/a(/.*)?",
            r"/a\+",
        ];
        let literal = |path: &str| labels(&format!("{path} a/x\n")).entries()[0].literal();
        let found = paths.map(literal);
        let expected = [
            Some("/usr/sbin/nginx"),
            Some("/lib/a.so.1"),
            None,
            None,
            None,
        ];
        assert_eq!(found, expected.map(|path| path.map(str::to_owned)));
    }

    #[test]
    fn files_merge_and_the_later_wins() {
        let context = parse("/a t\n/b <<none>>\n", Flavour::Contexts).unwrap();
        let first = labels("/.* biba/low,mls/low\n");
        let second = labels("/a mls/high\n");
        let set = SpecificationSet::new(vec![first, second, context]).unwrap();
        let label = |path: &[u8]| {
            set.decide(path, FileKind::Regular)
                .label
                .map(|one| one.to_string())
        };
        assert_eq!(label(b"/a").as_deref(), Some("biba/low,mls/high,sebsd/t"));
        assert_eq!(label(b"/b").as_deref(), Some("biba/low,mls/low"));
        assert_eq!(label(b"x"), None);
        assert_eq!(set.decide(b"/b", FileKind::Regular).entries.len(), 2);
    }

    #[test]
    fn files_that_could_exceed_a_label_are_refused() {
        let of = |from: usize| {
            let names = (from..from + 5).map(|index| format!("m{index}/x"));
            labels(&format!("/a {}\n", names.collect::<Vec<_>>().join(",")))
        };
        assert!(SpecificationSet::new(vec![of(0), of(0), of(3)]).is_ok());
        let mistake = SpecificationSet::new(vec![of(0), of(4)]).unwrap_err();
        assert_eq!(mistake, LabelMistake::TooManyElements { count: 9 });
        let long = |name: &str| labels(&format!("/a {name}/{0},{name}2/{0}\n", "v".repeat(254)));
        assert!(SpecificationSet::new(vec![long("a")]).is_ok());
        let mistake = SpecificationSet::new(vec![long("a"), long("b")]).unwrap_err();
        assert!(matches!(mistake, LabelMistake::TooLong { .. }));
    }

    #[test]
    fn each_mistake_of_a_line_names_its_place_and_a_remedy() {
        for (text, told) in [
            ("/a\n", "specs:1:1: the specification has no label"),
            ("/a -x biba/low\n", "specs:1:4: `-x` is not a kind of file"),
            ("/a -d biba/low more\n", "specs:1:16: `more` is too much"),
            (
                "\n/a biba/low,mls\n",
                "specs:2:13: the element `mls` has no value",
            ),
            ("/a biba/65536\n", "specs:1:4: `65536` is not a grade"),
            (
                "/a( biba/low\n",
                "specs:1:3: the pattern is not a regular expression: the group is not closed",
            ),
            (
                "/a)|(?:b biba/low\n",
                "specs:1:3: the pattern is not a regular expression: `)` closes no group",
            ),
            (
                "/a\u{7f} biba/low\n",
                "specs:1:3: the line has the invisible character U+007F",
            ),
            (
                "(((a{250}){250}){250}) biba/low\n",
                "specs:1:1: the pattern, or all patterns",
            ),
        ] {
            let found = parse(text, Flavour::Labels).unwrap_err();
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].to_string().starts_with(told), "{}", found[0]);
            assert!(!found[0].remedy().is_empty());
        }
    }

    #[test]
    fn one_specification_too_many_is_refused() {
        let of = |count: usize| parse(&"/a b/c\n".repeat(count), Flavour::Labels);
        assert_eq!(of(200).unwrap().entries().len(), 200);
        let found = of(MAXIMUM_SPECIFICATIONS + 1).unwrap_err();
        assert!(
            found[0]
                .to_string()
                .contains(":16385:1: there are more than 16384")
        );
    }
}
