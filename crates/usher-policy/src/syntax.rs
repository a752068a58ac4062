//! Tokens to blocks of statements, without knowing what the statements mean.
//!
//! Both blocks and statements begin with a *head*: a word, then values in groups separated by
//! commas. `;` ends a statement, `{ ... }` makes a block. Blocks do not nest in this version.
//!
//! After a mistake the parser goes on at the next `;` or `}`, so that one run reports them all. Two
//! frequent slips get an error of their own and cost nothing else: a forgotten `;` (a line that
//! begins with a word that can begin a statement here) and a forgotten `}` (a block inside a block
//! that would be right outside).

use crate::error::PolicyErrorKind;
use crate::keywords::{APPLICATION, BlockKind};
use crate::lexer::{Lexer, Token, TokenKind};
use crate::nearest::nearest;
use crate::report::Reporter;
use crate::source::{Location, MAXIMUM_SOURCE_BYTES, Source, Span};

/// Most statements in all sources together, blocks counted as one each.
pub const MAXIMUM_STATEMENTS: usize = 65_536;

/// One value of a statement.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) value: Value,
    pub(crate) location: Location,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Word(String),
    Text(String),
    /// A string that has been reported: nothing more is to be said of it.
    Broken,
}

impl Item {
    /// The value as it stands in the text, for error messages.
    pub(crate) fn shown(&self) -> String {
        match &self.value {
            Value::Word(word) => word.clone(),
            Value::Text(text) => format!("\"{text}\""),
            Value::Broken => "\"".to_owned(),
        }
    }
}

/// A keyword and its values: `keyword a b, c` has the groups `a b` and `c`.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) keyword: String,
    pub(crate) location: Location,
    pub(crate) groups: Vec<Vec<Item>>,
    /// The last token of the head.
    pub(crate) last: Location,
}

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) kind: BlockKind,
    /// Where the block's keyword stands.
    pub(crate) location: Location,
    /// None when it is missing or unusable, which has been reported.
    pub(crate) name: Option<Item>,
    pub(crate) statements: Vec<Statement>,
}

/// The blocks of all sources, or none when a limit kept a source from being read to its end: what
/// could be said of the rest would be noise.
pub(crate) fn parse_sources(sources: &[Source], reporter: &mut Reporter<'_>) -> Option<Vec<Block>> {
    let mut blocks = Vec::new();
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
        parser.parse(&mut blocks);
        if parser.has_stopped() {
            return None;
        }
    }
    complete.then_some(blocks)
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
    fn parse(&mut self, blocks: &mut Vec<Block>) {
        // The head of a block that was found inside an unclosed one.
        let mut pending: Option<Statement> = None;
        loop {
            let (head, terminator) = match pending.take() {
                Some(head) => {
                    let opened = head.location;
                    (head, Terminator::Open(opened))
                }
                None => match self.next() {
                    None => return,
                    Some(Token {
                        kind: TokenKind::Word(word),
                        location,
                        ..
                    }) => self.head(word, location, |word| {
                        BlockKind::of_keyword(word).is_some() || word == APPLICATION
                    }),
                    Some(token) => {
                        self.unexpected_outside(&token);
                        continue;
                    }
                },
            };
            let kind = self.block_kind(&head);
            match (kind, terminator) {
                (Some(kind), Terminator::Open(_)) => {
                    let name = self.block_name(kind, &head);
                    let (statements, next) = self.statements(kind, &head);
                    blocks.push(Block {
                        kind,
                        location: head.location,
                        name,
                        statements,
                    });
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

    /// The kind of block that a head opens; reports a head that opens none.
    fn block_kind(&mut self, head: &Statement) -> Option<BlockKind> {
        let kind = BlockKind::of_keyword(&head.keyword);
        if kind.is_none() {
            let error = if head.keyword == APPLICATION {
                PolicyErrorKind::ApplicationNotInThisVersion
            } else if let Some(block) = BlockKind::with_statement(&head.keyword) {
                PolicyErrorKind::StatementOutsideBlock {
                    found: head.keyword.clone(),
                    block,
                }
            } else {
                PolicyErrorKind::UnknownBlock {
                    found: head.keyword.clone(),
                    nearest: nearest(&head.keyword, BlockKind::ALL.map(BlockKind::keyword)),
                }
            };
            self.report(head.location, error);
        }
        kind
    }

    /// The one name of a block.
    fn block_name(&mut self, kind: BlockKind, head: &Statement) -> Option<Item> {
        let mut items = head.groups.iter().flatten();
        let Some(name) = items.next() else {
            self.report(
                head.location,
                PolicyErrorKind::MissingBlockName { block: kind },
            );
            return None;
        };
        if let Some(second) = items.next() {
            let error = PolicyErrorKind::SecondBlockName {
                block: kind,
                found: second.shown(),
            };
            self.report(second.location, error);
        }
        Some(name.clone())
    }

    /// The statements up to the block's `}`, and the head of a following block if that came first.
    fn statements(
        &mut self,
        kind: BlockKind,
        block: &Statement,
    ) -> (Vec<Statement>, Option<Statement>) {
        let mut statements = Vec::new();
        while let Some(token) = self.next() {
            let word = match token.kind {
                TokenKind::Close => return (statements, None),
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
            let (head, terminator) = self.head(word, token.location, |word| {
                kind.rule(word).is_some() || BlockKind::of_keyword(word).is_some()
            });
            match terminator {
                Terminator::Semicolon => statements.push(head),
                Terminator::NextHead => {
                    self.missing_semicolon(&head);
                    statements.push(head);
                }
                Terminator::Close => {
                    self.missing_semicolon(&head);
                    statements.push(head);
                    return (statements, None);
                }
                Terminator::Open(opened) => {
                    let is_block = BlockKind::of_keyword(&head.keyword).is_some()
                        || head.keyword == APPLICATION;
                    if is_block {
                        self.reporter
                            .report_repeated(head.location, block.location, |opened| {
                                PolicyErrorKind::MissingClose {
                                    block: kind,
                                    opened,
                                }
                            });
                        return (statements, Some(head));
                    }
                    self.report(head.location, PolicyErrorKind::NestedBlock);
                    self.skip_block(opened);
                }
                Terminator::EndOfText => break,
            }
        }
        if !self.has_stopped() {
            self.report(
                block.location,
                PolicyErrorKind::UnclosedBlock { block: kind },
            );
        }
        (statements, None)
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
