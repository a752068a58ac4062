//! Tokens to blocks of statements, without knowing what the statements mean.
//!
//! Both blocks and statements begin with a *head*: a word, then values in groups separated by
//! commas. `;` ends a statement, `{ ... }` makes a block. One kind of block has blocks inside; a few
//! statements stand outside of blocks.
//!
//! After a mistake the parser goes on at the next `;` or `}`, so that one run reports them all. Two
//! frequent slips get an error of their own and cost nothing else: a forgotten `;` (a line that
//! begins with a word that can begin a statement here) and a forgotten `}` (a block inside a block
//! that would be right outside).

use crate::error::PolicyErrorKind;
use crate::keywords::{BlockKind, outer_rule, outer_words};
use crate::lexer::{Lexer, Token, TokenKind};
use crate::nearest::nearest;
use crate::report::Reporter;
use crate::source::{Location, MAXIMUM_SOURCE_BYTES, Source, Span};
use crate::tree::{Block, Item, Statement, Tree, Value};

/// Most statements in all sources together, blocks counted as one each.
pub const MAXIMUM_STATEMENTS: usize = 65_536;

/// What stands in all sources, or none when a limit kept a source from being read to its end: what
/// could be said of the rest would be noise.
pub(crate) fn parse_sources(sources: &[Source], reporter: &mut Reporter<'_>) -> Option<Tree> {
    let mut tree = Tree::default();
    let mut statements = 0;
    let mut complete = true;
    for (index, source) in sources.iter().enumerate() {
        if source.text.len() > MAXIMUM_SOURCE_BYTES {
            let start = Location {
                source: index,
                span: Span {
                    offset: 0,
                    length: 0,
                },
            };
            let length = source.text.len();
            reporter.report(start, PolicyErrorKind::SourceTooLong { length });
            complete = false;
            continue;
        }
        let lexer = Lexer::new(source, index, reporter);
        let mut parser = Parser {
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

/// Whether a word begins something outside of blocks.
fn begins_outside(word: &str) -> bool {
    BlockKind::of_keyword(word).is_some() || outer_rule(word).is_some()
}

/// Whether a word that begins heads is a part of this statement, also at the beginning of a line.
fn belongs_to(keyword: &str, word: &str) -> bool {
    keyword == "expect" && word == "service"
}

/// What ended a head.
enum Terminator {
    Semicolon,
    Open(Location),
    Close,
    /// A line begins with a word that opens something new; the word is not consumed.
    NextHead,
    EndOfText,
}

struct Parser<'a, 'r, 's> {
    lexer: Lexer<'a>,
    reporter: &'r mut Reporter<'s>,
    peeked: Option<Token<'a>>,
    /// Read so far, in all sources.
    statements: &'r mut usize,
}

impl<'a> Parser<'a, '_, '_> {
    fn parse(&mut self, tree: &mut Tree) {
        // What was found inside an unclosed block and stands outside.
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
                    }) => self.head(word, location, |next| {
                        begins_outside(next) && !belongs_to(word, next)
                    }),
                    Some(token) => {
                        self.unexpected_outside(&token);
                        continue;
                    }
                },
            };
            if outer_rule(&head.keyword).is_some() {
                self.outer_statement(head, &terminator, tree);
                continue;
            }
            let kind = self.block_kind(&head);
            match (kind, terminator) {
                (Some(kind), Terminator::Open(_)) => {
                    let (block, next) = self.block(kind, &head);
                    tree.blocks.push(block);
                    pending = next;
                }
                (None, Terminator::Open(opened)) => self.skip_block(opened),
                _ if self.has_stopped() => return,
                (Some(kind), _) => {
                    self.report(
                        head.last.after(),
                        PolicyErrorKind::MissingOpen { block: kind },
                    );
                }
                (None, _) => {}
            }
        }
    }

    /// A limit was passed: nothing more is read.
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

    fn report(&mut self, location: Location, kind: PolicyErrorKind) {
        self.reporter.report(location, kind);
    }

    /// Reads on from a keyword to the end of its head.
    fn head(
        &mut self,
        keyword: &str,
        location: Location,
        begins_head: impl Fn(&str) -> bool,
    ) -> (Statement, Terminator) {
        *self.statements += 1;
        if *self.statements > MAXIMUM_STATEMENTS {
            self.report(location, PolicyErrorKind::TooManyStatements);
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
                        self.report(token.location, PolicyErrorKind::NothingBeforeComma);
                    } else {
                        head.groups.push(std::mem::take(&mut group));
                    }
                    head.last = token.location;
                    after_value = false;
                    continue;
                }
                TokenKind::Word(word) => {
                    if after_value && token.starts_line && begins_head(word) {
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
            self.report(head.last, PolicyErrorKind::NothingAfterComma);
        }
        (head, terminator)
    }

    /// A statement that stands outside of blocks.
    fn outer_statement(&mut self, head: Statement, terminator: &Terminator, tree: &mut Tree) {
        match terminator {
            Terminator::Semicolon => {}
            Terminator::Open(opened) => {
                let statement = head.keyword;
                self.report(
                    head.location,
                    PolicyErrorKind::StatementWithBraces { statement },
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

    /// The kind of block that a head opens; reports a head that opens none.
    fn block_kind(&mut self, head: &Statement) -> Option<BlockKind> {
        let kind = BlockKind::of_keyword(&head.keyword);
        if kind.is_none() {
            let in_block = BlockKind::ALL
                .into_iter()
                .find(|kind| kind.inner_of_keyword(&head.keyword).is_some())
                .or_else(|| BlockKind::with_statement(&head.keyword));
            let error = if let Some(block) = in_block {
                PolicyErrorKind::StatementOutsideBlock {
                    found: head.keyword.clone(),
                    block,
                }
            } else {
                PolicyErrorKind::UnknownBlock {
                    found: head.keyword.clone(),
                    nearest: nearest(&head.keyword, outer_words()),
                }
            };
            self.report(head.location, error);
        }
        kind
    }

    /// A block whose head has been read, up to its `}`, and what stands outside of blocks if that
    /// came first.
    fn block(
        &mut self,
        kind: BlockKind,
        head: &Statement,
    ) -> (Block, Option<(Statement, Terminator)>) {
        let mut names = self.block_names(kind, head).into_iter();
        let mut block = Block {
            kind,
            location: head.location,
            name: names.next(),
            more_names: names.collect(),
            statements: Vec::new(),
            blocks: Vec::new(),
        };
        let next = self.statements(&mut block);
        (block, next)
    }

    /// The names of a block, nearly always one.
    fn block_names(&mut self, kind: BlockKind, head: &Statement) -> Vec<Item> {
        let mut names = Vec::new();
        for group in &head.groups {
            for (position, item) in group.iter().enumerate() {
                if names.is_empty() || (kind.has_names() && position == 0) {
                    names.push(item.clone());
                } else {
                    let error = PolicyErrorKind::SecondBlockName {
                        block: kind,
                        found: item.shown(),
                    };
                    self.report(item.location, error);
                    return names;
                }
            }
        }
        if names.is_empty() {
            self.report(
                head.location,
                PolicyErrorKind::MissingBlockName { block: kind },
            );
        }
        names
    }

    /// The statements up to the block's `}`, or up to what stands outside of blocks if that came
    /// first.
    fn statements(&mut self, block: &mut Block) -> Option<(Statement, Terminator)> {
        let kind = block.kind;
        while let Some(token) = self.next() {
            let word = match token.kind {
                TokenKind::Close => return None,
                TokenKind::Word(word) => word,
                TokenKind::Open => {
                    self.report(token.location, PolicyErrorKind::NestedBlock);
                    self.skip_block(token.location);
                    continue;
                }
                _ => {
                    self.report(token.location, PolicyErrorKind::ExpectedStatement);
                    self.skip_statement(&token);
                    continue;
                }
            };
            let (head, terminator) = self.head(word, token.location, |next| {
                let inside = kind.rule(next).is_some() || kind.inner_of_keyword(next).is_some();
                (inside || begins_outside(next)) && !belongs_to(word, next)
            });
            if outer_rule(&head.keyword).is_some() {
                self.missing_close(block, &head);
                return Some((head, terminator));
            }
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
                    if BlockKind::of_keyword(&head.keyword).is_some()
                        || head.keyword == kind.keyword() =>
                {
                    self.missing_close(block, &head);
                    return Some((head, terminator));
                }
                Terminator::Open(opened) => match kind.inner_of_keyword(&head.keyword) {
                    Some(inner) => {
                        if let Some(next) = self.inner_blocks(inner, head, block) {
                            return Some(next);
                        }
                    }
                    None => {
                        self.report(head.location, PolicyErrorKind::NestedBlock);
                        self.skip_block(opened);
                    }
                },
                Terminator::EndOfText => break,
            }
        }
        if !self.has_stopped() {
            self.report(
                block.location,
                PolicyErrorKind::UnclosedBlock { block: kind },
            );
        }
        None
    }

    /// A block inside of another, and those that begin inside of it because it is not closed. One
    /// level deep: no kind that stands inside has blocks inside.
    fn inner_blocks(
        &mut self,
        kind: BlockKind,
        head: Statement,
        outer: &mut Block,
    ) -> Option<(Statement, Terminator)> {
        let mut head = head;
        loop {
            let (block, next) = self.block(kind, &head);
            outer.blocks.push(block);
            match next {
                Some((next, Terminator::Open(_))) if next.keyword == kind.keyword() => head = next,
                other => return other,
            }
        }
    }

    /// Inside a block something begins that stands outside of blocks.
    fn missing_close(&mut self, block: &Block, head: &Statement) {
        self.reporter
            .report_repeated(head.location, block.location, |opened| {
                PolicyErrorKind::MissingClose {
                    found: head.keyword.clone(),
                    block: block.kind,
                    opened,
                }
            });
    }

    fn missing_semicolon(&mut self, head: &Statement) {
        let last = head.groups.last().and_then(|group| group.last());
        if last.is_some_and(|item| matches!(item.value, Value::Broken)) {
            return; // The unterminated string took the `;` along.
        }
        let statement = head.keyword.clone();
        self.report(
            head.last.after(),
            PolicyErrorKind::MissingSemicolon { statement },
        );
    }

    fn unexpected_outside(&mut self, token: &Token<'_>) {
        match token.kind {
            TokenKind::Close => self.report(token.location, PolicyErrorKind::UnmatchedClose),
            TokenKind::Open => {
                self.report(token.location, PolicyErrorKind::ExpectedBlock);
                self.skip_block(token.location);
            }
            _ => {
                self.report(token.location, PolicyErrorKind::ExpectedBlock);
                self.skip_statement(token);
            }
        }
    }

    /// Goes behind the `;` or the block of what begins with this token, or up to a `}`.
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
            self.report(opened, PolicyErrorKind::UnmatchedOpen);
        }
    }
}
