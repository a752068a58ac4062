//! Parses tokens into blocks of statements, without knowing what the statements mean.
//!
//! Both blocks and statements begin with a *head*: a word, then values in groups separated by
//! commas. `;` ends a statement, `{ ... }` makes a block. One kind of block has blocks inside; a few
//! statements stand outside of blocks.
//!
//! After a mistake the parser goes on at the next `;` or `}`, so that one run reports them all. Some
//! frequent slips get an error of their own and cost nothing else: a forgotten `;` (a word that can
//! begin a statement here, at the beginning of a line, behind a string or behind all values that the
//! statement may have), a forgotten `}` (a block inside a block that would be right outside), a
//! forgotten `{` (a head with the keyword of a statement of the block) and a forgotten `"`, which the
//! lexer replaces.

use crate::dialect::{BlockRule, Dialect, StatementRule};
use crate::faults::SyntaxMistake;
use crate::item::{Item, Value};
use crate::lexer::{Lexer, Token, TokenKind};
use crate::limits::{MAXIMUM_SOURCE_BYTES, MAXIMUM_STATEMENTS};
use crate::mistake::nearest;
use crate::mistake::{Found, Mistake};
use crate::name::listed;
use crate::report::Reporter;
use crate::source::{Location, Source, Span};
use crate::tree::{Block, Statement, Tree};

/// Parses all sources. Returns none when a limit kept a source from being read to its end: mistakes
/// reported about the rest would be noise.
pub fn parse_syntax<'d>(
    dialect: &'d Dialect,
    sources: &[Source],
    reporter: &Reporter<'_>,
) -> Option<Tree<'d>> {
    let mut tree = Tree::default();
    let mut statements = 0;
    let mut complete = true;
    for (index, source) in sources.iter().enumerate() {
        if source.text.len() > MAXIMUM_SOURCE_BYTES {
            let (source, span, length) = (index, Span::default(), source.text.len());
            let start = Location { source, span };
            reporter.report(start, SyntaxMistake::SourceTooLong { length });
            complete = false;
            continue;
        }
        let lexer = Lexer::new(source, index, reporter);
        let mut parser = Parser {
            dialect,
            lexer,
            reporter,
            peeked: None,
            statements: &mut statements,
        };
        parser.parse(&mut tree);
        if parser.has_stopped() {
            return None;
        }
    }
    complete.then_some(tree)
}

/// The end of a head.
enum Terminator {
    Semicolon,
    Open(Location),
    Close,
    /// A line begins with a word that opens something new; the word is not consumed.
    NextHead,
    EndOfText,
}

/// Whether a word that begins heads is a part of this statement, also at the beginning of a line.
fn has_word(rule: Option<&StatementRule>, word: &str) -> bool {
    rule.is_some_and(|rule| rule.has_word(word))
}

/// Whether a word that can begin a head begins one behind these values, even in the middle of a line: behind
/// a string, or behind all values that the statement may have.
fn is_full(rule: Option<&StatementRule>, group: &[Item], word: &str) -> bool {
    let is_text = |item: &Item| matches!(item.value, Value::Text(_));
    group.last().is_some_and(is_text) || rule.is_some_and(|rule| rule.is_full(group, word))
}

struct Parser<'d, 'a, 'r> {
    dialect: &'d Dialect,
    lexer: Lexer<'a>,
    reporter: &'r Reporter<'r>,
    peeked: Option<Token<'a>>,
    /// The statements read so far, in all sources.
    statements: &'a mut usize,
}

impl<'d, 'a> Parser<'d, 'a, '_> {
    fn parse(&mut self, tree: &mut Tree<'d>) {
        // A statement that belongs outside of blocks, found inside an unclosed block.
        let mut pending: Option<(Statement, Terminator)> = None;
        loop {
            let (head, terminator) = match pending.take() {
                Some(head) => head,
                None => match self.next() {
                    None => return,
                    Some(Token {
                        kind: TokenKind::Word(word),
                        location,
                        ..
                    }) => {
                        let dialect = self.dialect;
                        let rule = dialect.statement(word);
                        self.head(word, location, rule, |next| dialect.begins(next))
                    }
                    Some(token) => {
                        self.unexpected_outside(&token);
                        continue;
                    }
                },
            };
            if self.dialect.statement(&head.keyword).is_some() {
                self.outer_statement(head, &terminator, tree);
                continue;
            }
            let rule = self.block_rule(&head);
            let (head, terminator, first) = self.forgotten_brace(rule, head, terminator);
            match (rule, terminator) {
                (Some(rule), Terminator::Open(_)) => {
                    let (block, next) = self.block(rule, &head, first);
                    tree.blocks.push(block);
                    pending = next;
                }
                (None, Terminator::Open(opened)) => self.skip_block(opened),
                _ if self.has_stopped() => return,
                (Some(rule), _) => {
                    let block = rule.keyword.clone();
                    self.report(head.last.after(), SyntaxMistake::MissingOpen { block });
                }
                (None, _) => {}
            }
        }
    }

    /// Whether a limit was passed: then nothing more is read.
    fn has_stopped(&self) -> bool {
        *self.statements > MAXIMUM_STATEMENTS || self.reporter.is_full()
    }

    fn next(&mut self) -> Option<Token<'a>> {
        if self.has_stopped() {
            return None;
        }
        match self.peeked.take() {
            Some(token) => Some(token),
            None => self.lexer.next_token(self.reporter),
        }
    }

    fn report(&self, location: Location, mistake: impl Mistake) {
        self.reporter.report(location, mistake);
    }

    /// Reads on from a keyword to the end of its head.
    fn head(
        &mut self,
        keyword: &str,
        location: Location,
        rule: Option<&StatementRule>,
        begins_head: impl Fn(&str) -> bool,
    ) -> (Statement, Terminator) {
        *self.statements += 1;
        if *self.statements > MAXIMUM_STATEMENTS {
            self.report(location, SyntaxMistake::TooManyStatements);
        }
        let mut head = Statement {
            keyword: keyword.to_owned(),
            location,
            groups: Vec::new(),
            last: location,
        };
        let mut group = Vec::new();
        let mut after_value = false;
        let terminator = loop {
            let Some(token) = self.next() else {
                break Terminator::EndOfText;
            };
            let value = match token.kind {
                TokenKind::Semicolon => break Terminator::Semicolon,
                TokenKind::Open => break Terminator::Open(token.location),
                TokenKind::Close => break Terminator::Close,
                TokenKind::Comma => {
                    if group.is_empty() {
                        self.report(token.location, SyntaxMistake::NothingBeforeComma);
                    } else {
                        head.groups.push(std::mem::take(&mut group));
                    }
                    head.last = token.location;
                    after_value = false;
                    continue;
                }
                TokenKind::Word(word) => {
                    let ends = token.starts_line || is_full(rule, &group, word);
                    if after_value && ends && begins_head(word) && !has_word(rule, word) {
                        self.peeked = Some(token);
                        break Terminator::NextHead;
                    }
                    Value::Word(word.to_owned())
                }
                TokenKind::Text(text) => Value::Text(text),
                TokenKind::BrokenText => Value::Broken,
            };
            head.last = token.location;
            group.push(Item {
                value,
                location: token.location,
            });
            after_value = true;
        };
        if !group.is_empty() {
            head.groups.push(group);
        } else if !head.groups.is_empty() && !matches!(terminator, Terminator::EndOfText) {
            self.report(head.last, SyntaxMistake::NothingAfterComma);
        }
        (head, terminator)
    }

    /// A statement that stands outside of blocks.
    fn outer_statement(&mut self, head: Statement, terminator: &Terminator, tree: &mut Tree<'d>) {
        match terminator {
            Terminator::Semicolon => {}
            Terminator::Open(opened) => {
                let statement = head.keyword;
                self.report(
                    head.location,
                    SyntaxMistake::StatementWithBraces { statement },
                );
                return self.skip_block(*opened);
            }
            Terminator::Close | Terminator::NextHead | Terminator::EndOfText => {
                if self.has_stopped() {
                    return;
                }
                self.missing_semicolon(&head);
            }
        }
        tree.statements.push(head);
    }

    /// The block that a head opens; reports a head that opens none.
    fn block_rule(&self, head: &Statement) -> Option<&'d BlockRule> {
        let rule = self.dialect.block(&head.keyword);
        if rule.is_none() {
            let found = Found(head.keyword.clone());
            let mistake = match self.dialect.home_of(&head.keyword) {
                Some(home) => SyntaxMistake::StatementOutsideBlock {
                    found,
                    block: home.keyword.clone(),
                },
                None => SyntaxMistake::UnknownBlock {
                    found,
                    nearest: nearest(&head.keyword, self.dialect.outer_words()),
                    known: listed(self.dialect.outer_words(), "and"),
                },
            };
            self.report(head.location, mistake);
        }
        rule
    }

    /// Parses a block whose head has been read, up to its `}`. Also returns a head that belongs outside of
    /// blocks, if that came before the `}`.
    fn block(
        &mut self,
        rule: &'d BlockRule,
        head: &Statement,
        first: Option<Statement>,
    ) -> (Block<'d>, Option<(Statement, Terminator)>) {
        let mut block = Block {
            rule,
            location: head.location,
            names: self.block_names(rule, head),
            statements: first.into_iter().collect(),
            blocks: Vec::new(),
        };
        let next = self.statements(&mut block);
        (block, next)
    }

    /// Where the `{` of a block is forgotten, its head has the first statement too: `users u member a;`.
    /// Reports that, and separates the two.
    fn forgotten_brace(
        &self,
        rule: Option<&BlockRule>,
        head: Statement,
        terminator: Terminator,
    ) -> (Statement, Terminator, Option<Statement>) {
        let (Some(rule), Terminator::Semicolon) = (rule, &terminator) else {
            return (head, terminator, None);
        };
        let name = head.groups.iter().flatten().next().and_then(Item::word);
        let rules = rule.statements_of(name).unwrap_or_default();
        let begins = |item: &Item| {
            let word = item.word();
            word.is_some_and(|word| rules.iter().any(|rule| rule.begins_with(word)))
        };
        let places = head.groups.iter().enumerate().flat_map(|(number, group)| {
            let places = group.iter().enumerate();
            places.map(move |(place, item)| (number, place, item))
        });
        // The first value is the name.
        let mut places = places.skip(1);
        let Some((number, place, keyword)) = places.find(|(.., item)| begins(item)) else {
            return (head, terminator, None);
        };
        let mut statement = Statement {
            keyword: keyword.word().unwrap_or_default().to_owned(),
            location: keyword.location,
            groups: head.groups[number..].to_vec(),
            last: head.last,
        };
        statement.groups[0].drain(..=place);
        statement.groups.retain(|group| !group.is_empty());
        let mut named = head;
        named.groups.truncate(number + 1);
        named.groups[number].truncate(place);
        named.groups.retain(|group| !group.is_empty());
        let last = named.groups.last().and_then(|group| group.last());
        named.last = last.map_or(named.location, |item| item.location);
        let after = named.last.after();
        let block = rule.keyword.clone();
        self.report(after, SyntaxMistake::MissingOpen { block });
        (named, Terminator::Open(after), Some(statement))
    }

    /// The names of a block, nearly always one.
    fn block_names(&self, rule: &BlockRule, head: &Statement) -> Vec<Item> {
        let mut names = Vec::new();
        for group in &head.groups {
            for (position, item) in group.iter().enumerate() {
                if names.is_empty() || (rule.has_names && position == 0) {
                    names.push(item.clone());
                    continue;
                }
                let (block, found) = (rule.keyword.clone(), Found(item.shown()));
                let mistake = if rule.has_names {
                    SyntaxMistake::NamesWithoutComma { block, found }
                } else {
                    SyntaxMistake::SecondBlockName { block, found }
                };
                self.report(item.location, mistake);
                return names;
            }
        }
        if names.is_empty() {
            let block = rule.keyword.clone();
            self.report(head.location, SyntaxMistake::MissingBlockName { block });
        }
        names
    }

    /// The statements up to the block's `}`, or up to what stands outside of blocks if that came
    /// first.
    fn statements(&mut self, block: &mut Block<'d>) -> Option<(Statement, Terminator)> {
        let (dialect, rule) = (self.dialect, block.rule);
        let name = block.name().and_then(Item::word);
        let rules = rule.statements_of(name).unwrap_or_default();
        while let Some(token) = self.next() {
            let word = match token.kind {
                TokenKind::Close => return None,
                TokenKind::Word(word) => word,
                TokenKind::Open => {
                    self.report(token.location, SyntaxMistake::NestedBlock);
                    self.skip_block(token.location);
                    continue;
                }
                _ => {
                    self.report(token.location, SyntaxMistake::ExpectedStatement);
                    self.skip_statement(&token);
                    continue;
                }
            };
            let stated = |word: &str| rules.iter().find(|rule| rule.begins_with(word));
            let own = stated(word).or_else(|| dialect.statement(word));
            let (head, terminator) = self.head(word, token.location, own, |next| {
                let inside = stated(next).is_some() || rule.inner(next).is_some();
                inside || dialect.begins(next)
            });
            if stated(&head.keyword).is_none() && dialect.statement(&head.keyword).is_some() {
                self.missing_close(block, &head);
                return Some((head, terminator));
            }
            let inner = rule.inner(&head.keyword);
            let inner = inner.filter(|_| stated(&head.keyword).is_none());
            let (head, terminator, first) = self.forgotten_brace(inner, head, terminator);
            match terminator {
                Terminator::Semicolon => block.statements.push(head),
                Terminator::NextHead => {
                    self.missing_semicolon(&head);
                    block.statements.push(head);
                }
                Terminator::Close => {
                    self.missing_semicolon(&head);
                    block.statements.push(head);
                    return None;
                }
                Terminator::Open(_)
                    if dialect.block(&head.keyword).is_some() || head.keyword == rule.keyword =>
                {
                    self.missing_close(block, &head);
                    return Some((head, terminator));
                }
                Terminator::Open(opened) => match rule.inner(&head.keyword) {
                    Some(inner) => {
                        if let Some(next) = self.inner_blocks(inner, (head, first), block) {
                            return Some(next);
                        }
                    }
                    None => {
                        self.report(head.location, SyntaxMistake::NestedBlock);
                        self.skip_block(opened);
                    }
                },
                Terminator::EndOfText => break,
            }
        }
        if !self.has_stopped() {
            let mistake = SyntaxMistake::UnclosedBlock {
                block: rule.keyword.clone(),
            };
            self.report(block.location, mistake);
        }
        None
    }

    /// Parses a block inside another, and blocks that begin inside the inner one because it is not closed.
    /// There is one level only: no kind of block that stands inside has blocks inside.
    fn inner_blocks(
        &mut self,
        rule: &'d BlockRule,
        (head, first): (Statement, Option<Statement>),
        outer: &mut Block<'d>,
    ) -> Option<(Statement, Terminator)> {
        let (mut head, mut first) = (head, first);
        loop {
            let (block, next) = self.block(rule, &head, first.take());
            outer.blocks.push(block);
            match next {
                Some((next, Terminator::Open(_))) if next.keyword == rule.keyword => head = next,
                other => return other,
            }
        }
    }

    /// Reports that something that belongs outside of blocks begins inside a block.
    fn missing_close(&self, block: &Block<'_>, head: &Statement) {
        let mistake = SyntaxMistake::MissingClose {
            found: Found(head.keyword.clone()),
            block: block.rule.keyword.clone(),
            opened: self.reporter.place(block.location),
        };
        self.report(head.location, mistake);
    }

    fn missing_semicolon(&self, head: &Statement) {
        let last = head.groups.last().and_then(|group| group.last());
        if last.is_some_and(|item| matches!(item.value, Value::Broken)) {
            return; // The unterminated string took the `;` along.
        }
        let statement = Found(head.keyword.clone());
        self.report(
            head.last.after(),
            SyntaxMistake::MissingSemicolon { statement },
        );
    }

    fn unexpected_outside(&mut self, token: &Token<'_>) {
        if token.kind == TokenKind::Close {
            return self.report(token.location, SyntaxMistake::UnmatchedClose);
        }
        let known = listed(self.dialect.outer_words(), "or");
        self.report(token.location, SyntaxMistake::ExpectedBlock { known });
        match token.kind {
            TokenKind::Open => self.skip_block(token.location),
            _ => self.skip_statement(token),
        }
    }

    /// Skips the statement or block that begins with this token. Stops before the `}` of the surrounding
    /// block.
    fn skip_statement(&mut self, first: &Token<'_>) {
        if first.kind == TokenKind::Semicolon {
            return;
        }
        while let Some(token) = self.next() {
            match token.kind {
                TokenKind::Semicolon => return,
                TokenKind::Open => return self.skip_block(token.location),
                TokenKind::Close => {
                    self.peeked = Some(token);
                    return;
                }
                _ => {}
            }
        }
    }

    /// Goes behind the `}` that belongs to a `{` already read, over blocks inside.
    fn skip_block(&mut self, opened: Location) {
        let mut depth = 1_usize;
        while let Some(token) = self.next() {
            match token.kind {
                TokenKind::Open => depth += 1,
                TokenKind::Close if depth == 1 => return,
                TokenKind::Close => depth -= 1,
                _ => {}
            }
        }
        if !self.has_stopped() {
            self.report(opened, SyntaxMistake::UnmatchedOpen);
        }
    }
}
