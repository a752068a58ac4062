//! The canonical form of a policy text: `usher policy fmt`.
//!
//! It works on tokens, so comments, order and the spelling of strings stay. Each statement has a line,
//! indented by two blanks for each `{`. At most one empty line separates statements; exactly one stands
//! around outer blocks, unless a comment leads to them. A statement longer than [`LINE_WIDTH`] continues
//! on the next line after a comma or between two strings, and nowhere else: a line that begins with a
//! keyword is read as a forgotten `;`.

use crate::dialect::Dialect;
use crate::lexer::{Lexer, Token, TokenKind};
use crate::mistake::Diagnostic;
use crate::report::Reporter;
use crate::source::Source;
use crate::syntax;

/// Statements are broken where they would be longer than this, in characters.
pub const LINE_WIDTH: usize = 100;

/// The text in its canonical form. Reads as the same policy, or has the same mistakes; the
/// canonical form of a canonical text is itself.
///
/// # Errors
///
/// The mistakes of its form: characters, strings, `;` and braces, unknown kinds of block. Names
/// are not looked at, since they may be defined in other files.
pub fn format(dialect: &Dialect, source: &Source) -> Result<String, Vec<Diagnostic>> {
    let sources = std::slice::from_ref(source);
    let reporter = Reporter::new(sources);
    syntax::parse_syntax(dialect, sources, &reporter);
    let errors = reporter.finish();
    if !errors.is_empty() {
        return Err(errors);
    }
    // The parser's lexer, so that parser and formatter read the same language.
    let reporter = Reporter::new(sources);
    let mut lexer = Lexer::new(source, 0, &reporter);
    let mut writer = Writer::new(dialect);
    let mut end = 0;
    while let Some(token) = lexer.next_token(&reporter) {
        let span = token.location.span;
        writer.gap(&source.text[end..span.offset]);
        end = span.offset + span.length;
        writer.token(&token, &source.text[span.offset..end]);
    }
    writer.gap(&source.text[end..]);
    Ok(writer.text)
}

/// The last thing written outside of heads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Nothing,
    Open,
    Close,
    Statement,
    Comment,
}

/// The last thing in a head.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Word,
    String,
    Comma,
}

struct Writer<'d> {
    dialect: &'d Dialect,
    text: String,
    /// Characters on the line that is being written; none when the line before has been ended.
    column: usize,
    /// Blocks that are open.
    depth: usize,
    /// A head has begun and is not ended by `;` or `{`.
    in_head: bool,
    /// The last token of the head.
    after: After,
    last: Last,
    /// An empty line stood in the text since `last`.
    empty_line: bool,
}

impl<'d> Writer<'d> {
    fn new(dialect: &'d Dialect) -> Self {
        Self {
            dialect,
            text: String::new(),
            column: 0,
            depth: 0,
            in_head: false,
            after: After::Word,
            last: Last::Nothing,
            empty_line: false,
        }
    }

    /// Writes the gap between two tokens: blanks, line ends, comments.
    fn gap(&mut self, gap: &str) {
        let mut lines = gap.split('\n').map(str::trim).enumerate().peekable();
        while let Some((number, line)) = lines.next() {
            let begins_line = number > 0 || self.text.is_empty();
            match (line.is_empty(), begins_line) {
                (false, true) => self.own_comment(line),
                (false, false) => self.trailing_comment(line),
                // The last piece is the beginning of the next token's line.
                (true, true) => self.empty_line |= lines.peek().is_some(),
                (true, false) => {}
            }
        }
    }

    /// A comment after something on its line.
    fn trailing_comment(&mut self, comment: &str) {
        if self.column == 0 {
            self.text.pop(); // The line end.
        }
        self.text += "  ";
        self.text += comment;
        self.end_line();
    }

    /// A comment with a line of its own.
    fn own_comment(&mut self, comment: &str) {
        if self.column > 0 {
            self.end_line();
        }
        if !self.in_head {
            self.separate(false);
            self.last = Last::Comment;
        }
        self.indent();
        self.text += comment;
        self.end_line();
    }

    fn token(&mut self, token: &Token<'_>, written: &str) {
        match token.kind {
            TokenKind::Semicolon => {
                self.go_on(written, "");
                self.end_head(Last::Statement);
            }
            TokenKind::Open => {
                self.go_on(written, " ");
                self.depth += 1;
                self.end_head(Last::Open);
            }
            TokenKind::Close => {
                self.depth = self.depth.saturating_sub(1);
                self.indent();
                self.text += written;
                self.end_head(Last::Close);
            }
            TokenKind::Comma => {
                self.go_on(written, "");
                self.after = After::Comma;
            }
            TokenKind::Word(_) | TokenKind::Text(_) | TokenKind::BrokenText => {
                self.value(token, written);
            }
        }
    }

    fn value(&mut self, token: &Token<'_>, written: &str) {
        let is_string = matches!(token.kind, TokenKind::Text(_));
        if self.in_head {
            // 2: the blank before the token, and the `,` or `;` after it.
            let column = self.column + written.chars().count() + 2;
            let may_break = match self.after {
                After::Comma => true,
                After::String => is_string,
                After::Word => false,
            };
            if may_break && self.column > 0 && column > LINE_WIDTH {
                self.end_line();
            }
            self.go_on(written, " ");
        } else {
            let is_block = self.dialect.block(written).is_some();
            self.separate(is_block);
            self.indent();
            self.in_head = true;
            self.write(written);
        }
        self.after = if is_string {
            After::String
        } else {
            After::Word
        };
    }

    /// Continues a head: on this line or, when a comment or its length ended this line, on the next.
    fn go_on(&mut self, written: &str, blank: &str) {
        if self.column == 0 {
            self.indent();
        } else {
            self.write(blank);
        }
        self.write(written);
    }

    fn end_head(&mut self, last: Last) {
        self.in_head = false;
        self.after = After::Word;
        self.empty_line = false;
        self.last = last;
        self.end_line();
    }

    /// Writes the empty line before a thing outside of heads, where one belongs.
    fn separate(&mut self, is_block: bool) {
        let wanted = match self.last {
            Last::Nothing | Last::Open => false,
            Last::Close => self.depth == 0 || self.empty_line,
            Last::Statement => (is_block && self.depth == 0) || self.empty_line,
            Last::Comment => self.empty_line,
        };
        if wanted {
            self.text.push('\n');
        }
        self.empty_line = false;
    }

    /// The blanks at the beginning of a line; two levels more where a head goes on.
    fn indent(&mut self) {
        let depth = self.depth + if self.in_head { 2 } else { 0 };
        self.write(&"  ".repeat(depth));
    }

    fn write(&mut self, written: &str) {
        self.text += written;
        self.column += written.chars().count();
    }

    fn end_line(&mut self) {
        self.text.push('\n');
        self.column = 0;
    }
}
