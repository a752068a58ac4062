//! The mistakes that any dialect's text can have.

use crate::address::AddressRange;
use crate::limits::{MAXIMUM_ERRORS, MAXIMUM_SOURCE_BYTES, MAXIMUM_STATEMENTS};
use crate::mistake::{Found, did_you_mean, shown};
use crate::source::Place;

crate::mistakes! {
    /// A fault of the text, or of the form of blocks and statements.
    pub enum SyntaxMistake {
        /// The source is longer than [`MAXIMUM_SOURCE_BYTES`]; nothing of it was read.
        SourceTooLong { length: usize }
            => "the file has {length} bytes, more than {MAXIMUM_SOURCE_BYTES}";
            "split it into files of at most {MAXIMUM_SOURCE_BYTES} bytes";
        /// A byte that is not of UTF-8; nothing of the source was read.
        NotUtf8 { byte: u8 }
            => "the byte 0x{byte:02x} does not belong in UTF-8 here";
            "write the file in UTF-8; iconv(1) converts it from another encoding";
        /// More statements than [`MAXIMUM_STATEMENTS`]; nothing after this one was read.
        TooManyStatements
            => "this is more than {MAXIMUM_STATEMENTS} statements";
            "write several values as one list, and remove what is not needed";
        /// More mistakes than [`MAXIMUM_ERRORS`].
        TooManyErrors
            => "there are more than {MAXIMUM_ERRORS} mistakes; the rest is not shown";
            "correct those above and check again";
        /// A control character, a direction mark, an unusual blank, or a character without width.
        ForbiddenCharacter { character: char }
            => "the invisible character U+{:04X} does not belong in a policy", u32::from(*character);
            "remove it; such characters make a policy look like something it is not";
        /// A string without its closing quote on the same line.
        UnterminatedString
            => "the string does not end on its line";
            "end it with `\"`; a line end within a string is written `\\n`";
        /// A backslash before a character that makes no escape.
        UnknownEscape { character: char }
            => "`\\{}` means nothing in a string", shown(1, &character.to_string());
            "write `\\\\` for a backslash; there are `\\\\`, `\\\"`, `\\n` and `\\t`";
        /// Something else where a block should begin.
        ExpectedBlock { known: String }
            => "a block is expected here"; "begin with {known}";
        /// A block of a kind that does not exist.
        UnknownBlock { found: Found, nearest: Option<String>, known: String }
            => "there is no block `{found}`";
            "{}", did_you_mean(nearest, format_args!("there are {known}"));
        /// A statement that stands outside of any block.
        StatementOutsideBlock { found: Found, block: String }
            => "`{found}` stands outside a block";
            "move it into {} block, or see whether a `}}` stands too early", one(block);
        /// No `{` after a block's name.
        MissingOpen { block: String }
            => "a `{{` is missing after the head of the `{block}` block";
            "write `{block} NAME {{ ... }}`";
        /// A block without a name.
        MissingBlockName { block: String }
            => "the `{block}` block has no name"; "write `{block} NAME {{ ... }}`";
        /// A block with more than one name.
        SecondBlockName { block: String, found: Found }
            => "`{found}` is too much after the name of the `{block}` block";
            "{} block has one name: make a block for each", one(block);
        /// Names of a block without a comma between them.
        NamesWithoutComma { block: String, found: Found }
            => "`{found}` is too much after the name of the `{block}` block";
            "separate the names by commas";
        /// The text ends inside a block.
        UnclosedBlock { block: String }
            => "the `{block}` block is not closed before the end of the file";
            "write `}}` after its last statement";
        /// Something that belongs outside begins inside of a block.
        MissingClose { found: Found, block: String, opened: Place }
            => "`{found}` begins here, but the `{block}` block of {opened} is not closed";
            "write `}}` before it";
        /// A `{` in a statement that stands outside of blocks.
        StatementWithBraces { statement: String }
            => "`{statement}` is a statement and has no braces"; "end it with `;`";
        /// A block inside a block, where none can be.
        NestedBlock
            => "a block cannot stand inside a block";
            "statements end with `;` and have no braces";
        /// A `}` without a block.
        UnmatchedClose
            => "this `}}` closes nothing"; "remove it, or see whether a `{{` is missing above";
        /// A `{` that is never closed, in a block that was skipped.
        UnmatchedOpen
            => "this `{{` is never closed"; "write the `}}` that belongs to it";
        /// Something else where a statement should begin.
        ExpectedStatement
            => "a statement is expected here";
            "a statement is a keyword, its values, and one `;`; remove what is too much";
        /// No `;` at the end of a statement.
        MissingSemicolon { statement: Found }
            => "a `;` is missing at the end of the statement `{statement}`"; "write `;` here";
        /// A comma at the beginning of a list, or two in a row.
        NothingBeforeComma
            => "nothing stands before this comma"; "remove the comma, or write what is missing";
        /// A comma at the end of a list.
        NothingAfterComma
            => "nothing stands after this comma"; "remove the comma, or write what is missing";
    }
}

crate::mistakes! {
    /// A fault of a statement by its declaration: its place, its number, its values.
    pub enum StatementMistake {
        /// A statement that this kind of block does not have.
        UnknownStatement { block: String, found: Found, nearest: Option<String>, known: String }
            => "{} block has no statement `{found}`", one(block);
            "{}", did_you_mean(nearest, statements_of(block, known));
        /// A statement that begins with one of its later words.
        WrongBeginning { found: Found, form: String }
            => "`{found}` does not begin a statement"; "write {form}";
        /// A statement that this block must have.
        MissingStatement { block: String, statement: String, form: String, about: String }
            => "the `{block}` block does not say `{statement}`"; "add {form}{}", if about.is_empty() { String::new() } else { format!(": {about}") };
        /// One of several statements, of which the block must have one.
        NoneOf { block: String, statements: String, forms: String }
            => "the `{block}` block says neither {statements}"; "add {forms}";
        /// Two statements of which a block has one.
        BothOf { statement: String, other: String, first: Place, abouts: Box<[String; 2]> }
            => "`{statement}` stands beside `{other}` at {first}; a block has one of the two";
            "keep `{statement}`, {}, or `{other}`, {}", abouts[0], abouts[1];
        /// A statement that has no meaning beside what the block says.
        NotBeside { statement: String, beside: String, found: String }
            => "`{statement}` has no meaning with `{found}`";
            "remove `{statement}`; it is for `{beside}`";
        /// A second statement of a kind that may stand once.
        RepeatedStatement { statement: String, within: &'static str, first: Place }
            => "`{statement}` stands a second time in this {within}; the first is at {first}";
            "make one statement of the two";
        /// A statement without the value it needs.
        MissingValue { statement: String, form: String }
            => "`{statement}` lacks a value"; "write {form}";
        /// A value too much, or of the wrong form.
        UnexpectedValue { statement: String, form: String, found: Found }
            => "`{found}` does not belong in `{statement}`"; "write {form}";
        /// A value of a list behind another one, without a comma.
        ValueWithoutComma { statement: String, found: Found }
            => "`{found}` follows another value of `{statement}` without a comma";
            "write a comma before `{found}`, or remove it";
        /// `any` or `none` beside other values.
        NotAlone { word: String, statement: String, form: String }
            => "`{word}` in `{statement}` stands beside other values"; "write {form}";
        /// A word where a string belongs.
        ExpectedString { found: Found }
            => "`{found}` must be a string"; "put it between `\"` and `\"`";
        /// A string where a word belongs.
        ExpectedWord { found: Found }
            => "{found} must be a word, not a string"; "leave the quotes out";
        /// A word that is not a valid name.
        InvalidName { noun: &'static str, rule: &'static str, found: Found }
            => "`{found}` cannot be the name of {} {noun}", article(noun); "{rule}";
        /// A word of another kind: `not` says what it should be, and `write` how that is written.
        NotOfKind { found: Found, not: String, write: String }
            => "`{found}` is not {not}"; "write {write}";
        /// Neither addresses nor the name of a host.
        InvalidNetwork { found: Found }
            => "`{found}` is neither a range of addresses nor the name of a host";
            "write an address, a network such as 192.0.2.0/24, a range such as 192.0.2.1 - \
             192.0.2.9, or a host name of at most 63 characters";
        /// A word for everybody where addresses belong.
        EverybodyByWord { found: Found }
            => "`{found}` is the name of no host, and addresses have no word for all of them";
            "for all addresses write 0.0.0.0/0, and ::/0 in a statement of its own; \
             for a machine of this name, its full host name";
        /// A range whose first address is after its last.
        RangeBackwards { found: Found }
            => "`{found}` goes backwards"; "write the lower address first";
        /// A prefix longer than an address.
        PrefixTooLong { found: Found, most: u8 }
            => "`{found}` has too long a prefix"; "write a length of at most {most}";
        /// An address with bits after its prefix.
        NetworkHostBits { found: Found, network: AddressRange }
            => "`{found}` is not the first address of its network, {network}";
            "write {network}, or the address alone when one machine is meant";
        /// An IPv4-mapped address in a range.
        MappedNetwork { found: Found }
            => "`{found}` has an IPv4 address written as IPv6"; "write the IPv4 address";
        /// More values than the statement takes.
        TooManyValues { statement: String, found: usize, most: usize, hint: &'static str }
            => "`{statement}` has {found} entries, more than {most}"; "name at most {most}{hint}";
        /// The same value twice in one list.
        ListedTwice { found: Found, first: Place }
            => "`{found}` is already listed at {first}"; "keep one of the two";
        /// A second block of the same kind and name.
        DuplicateBlock { block: String, name: Found, first: Place }
            => "the `{block}` block `{name}` is already defined at {first}";
            "rename one, or make one block of the two";
    }
}

/// A keyword with its article, as sentences have it.
fn one(keyword: &str) -> String {
    format!("{} `{keyword}`", article(keyword))
}

/// The remedy that lists the statements of a block.
fn statements_of(block: &str, known: &str) -> String {
    if known.is_empty() {
        "remove it: this block has no statements".to_owned()
    } else {
        format!("{} block has {known}", one(block))
    }
}

/// The indefinite article. `u` counts as a consonant: a user.
fn article(noun: &str) -> &'static str {
    if noun.starts_with(['a', 'e', 'i', 'o']) {
        "an"
    } else {
        "a"
    }
}
