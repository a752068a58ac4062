//! The mistakes of labels and of the files that hold them, each with its remedy.

use usher_language::{Found, Mistake, Span, did_you_mean, mistakes};

use crate::limits::{
    MAXIMUM_ACCOUNT_NAME, MAXIMUM_CLASSES, MAXIMUM_ELEMENTS, MAXIMUM_LOGIN_GROUPS,
    MAXIMUM_LOGIN_USERS, MAXIMUM_SPECIFICATIONS, MAXIMUM_TEXT, MAXIMUM_VALUE,
};

mistakes! {
    /// Mistakes in a label, or in a list of elements.
    pub enum LabelMistake {
        /// No element at all.
        Empty => "the label is empty"; "write at least one element, such as `biba/high`";
        /// Longer than [`MAXIMUM_TEXT`].
        TooLong { length: usize }
            => "the label has {length} bytes, more than {MAXIMUM_TEXT}";
            "remove elements, or shorten their values, until {MAXIMUM_TEXT} bytes remain";
        /// More than [`MAXIMUM_ELEMENTS`].
        TooManyElements { count: usize }
            => "there are {count} elements, more than {MAXIMUM_ELEMENTS}";
            "remove the elements of policy modules that are no longer used";
        /// Bytes that are not of UTF-8, and so of no label.
        NotText => "the label has bytes that are not text";
            "remove the attribute `security.bpf.mac`, or write the label again with setfmac(8)";
        /// Nothing between two commas, or at an end.
        EmptyElement => "an element is missing beside a comma";
            "write one comma between two elements, and none at the ends";
        /// An element without `/`.
        NoValue { found: Found }
            => "the element `{found}` has no value"; "write it as `NAME/VALUE`, such as `biba/high`";
        /// Not an [`ElementName`](crate::ElementName).
        InvalidName { found: Found }
            => "`{found}` is not the name of an element";
            "a name is a small letter, then small letters, digits or `_`, at most 31 in all";
        /// Not an [`ElementValue`](crate::ElementValue).
        InvalidValue { name: String, found: Found }
            => "`{found}` is not a value for the element `{name}`";
            "a value has letters, digits and `_.:+-()[]=@`, 1 to 255 of them";
        /// One name twice.
        Repeated { name: String }
            => "the element `{name}` stands twice"; "write each element once";
        /// A value in a list of names.
        ValueInList { name: String }
            => "the list names the element `{name}` with a value";
            "a list has names only, such as `?biba,?mls`";
    }
}

/// A text that is not a label, with the place of the mistake. Displays as an explanation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {} of the label: {mistake}", .span.offset + 1)]
pub struct LabelError {
    /// Where, in bytes of the text.
    pub span: Span,
    /// The mistake.
    pub mistake: LabelMistake,
}

impl LabelError {
    /// The remedy: one sentence for the user.
    pub fn remedy(&self) -> String {
        self.mistake.remedy()
    }
}

mistakes! {
    /// Mistakes in the value of an element, for the kind of values that its module declares.
    pub enum ValueMistake {
        /// Not a grade.
        InvalidGrade { found: Found }
            => "`{found}` is not a grade";
            "a grade is `low`, `high`, `equal` or a number from 0 to 65535 without zeros before it";
        /// Not a compartment.
        InvalidCompartment { found: Found }
            => "`{found}` is not a compartment";
            "compartments are numbers from 1 to 256 with `+` between them, such as `10:2+3`";
        /// Compartments behind a word.
        CompartmentsOfWord { found: Found }
            => "`{found}` has compartments";
            "write compartments behind a number only: `low`, `high` and `equal` have none";
        /// A parenthesis or bracket that does not end the value.
        NotClosed { found: Found }
            => "`{found}` is not closed at the end of the value";
            "write a range as `(LOW-HIGH)`, an auxiliary grade as `[GRADE]`, and nothing behind either";
        /// One level where two belong.
        NoRange { found: Found }
            => "`{found}` is not a range"; "write two levels with `-` between them, such as `(low-high)`";
        /// A range whose higher end does not dominate its lower one.
        RangeBackwards { low: String, high: String }
            => "the range from {low} to {high} ends before it begins";
            "the second level must be at least as high, and have all compartments of the first";
        /// Not a number.
        InvalidNumber { found: Found }
            => "`{found}` is not a number";
            "write a number from 0 to 4294967295 without zeros before it";
        /// Not a [`NameValue`](crate::NameValue).
        InvalidName { found: Found }
            => "`{found}` is not a name"; "a name has letters, digits and `_.-@:+`, 1 to 63 of them";
        /// Longer than a value may be.
        TooLong { length: usize }
            => "the value has {length} bytes, more than {MAXIMUM_VALUE}";
            "use fewer compartments";
    }
}

mistakes! {
    /// Mistakes in a mac.conf.
    pub enum DefaultsMistake {
        /// A line that begins with another word.
        UnknownStatement { found: Found, nearest: Option<String> }
            => "there is no statement `{found}`";
            "{}", did_you_mean(nearest, "write `default_labels CLASS ELEMENTS`");
        /// Too few or too many words on the line.
        WrongForm { statement: String, form: &'static str }
            => "`{statement}` has too few or too many words"; "write `{form}`";
        /// Not a [`ClassName`](crate::ClassName).
        InvalidClass { found: Found }
            => "`{found}` is not the name of an object class";
            "classes are `file`, `ifnet`, `process`, `socket`; others are small letters, digits and `_`";
        /// More than [`MAXIMUM_CLASSES`].
        TooManyClasses => "there are more than {MAXIMUM_CLASSES} object classes";
            "remove those that no program asks for";
    }
}

mistakes! {
    /// Mistakes in a specification file of setfsmac.
    pub enum SpecificationMistake {
        /// A line of one word.
        NoLabel => "the specification has no label";
            "write `PATTERN LABEL`, or `PATTERN -d LABEL` for directories only";
        /// A line of more than three words.
        TooManyWords { found: Found }
            => "`{found}` is too much on the line";
            "write `PATTERN [KIND] LABEL`; a blank in a pattern is written `[[:space:]]`";
        /// The middle word is not a kind of file.
        UnknownKind { found: Found }
            => "`{found}` is not a kind of file";
            "kinds are `--` regular file, `-d` directory, `-l` symbolic link, `-b` block device, \
             `-c` character device, `-p` named pipe, `-s` socket";
        /// A control character, which a reader cannot see.
        Invisible { code: u32 }
            => "the line has the invisible character U+{code:04X}";
            "remove it; in a pattern, `[[:cntrl:]]` matches control characters";
        /// The pattern is not a regular expression.
        InvalidPattern { reason: String }
            => "the pattern is not a regular expression: {reason}";
            "write a POSIX extended regular expression (regex(7)) that matches whole paths, such as `/home/[^/]+/mail(/.*)?`";
        /// One pattern, or all together, would take too much memory.
        PatternTooLarge => "the pattern, or all patterns together, would take too much memory";
            "use smaller numbers in braces, or divide the file";
        /// More than [`MAXIMUM_SPECIFICATIONS`].
        TooMany => "there are more than {MAXIMUM_SPECIFICATIONS} specifications";
            "divide the file, and name each part with an option of its own";
    }
}

mistakes! {
    /// Mistakes in mac.login.
    pub enum LoginMistake {
        /// A line that begins with another word.
        UnknownStatement { found: Found, nearest: Option<String> }
            => "there is no statement `{found}`";
            "{}", did_you_mean(
                nearest,
                "write `user NAME LABEL`, `group NAME LABEL` or `default LABEL`"
            );
        /// Too few or too many words on the line.
        WrongForm { statement: String, form: &'static str }
            => "`{statement}` has too few or too many words";
            "write `{form}`, with commas between the label's elements and no blanks";
        /// No name service has such a name.
        InvalidName { found: Found }
            => "`{found}` is not the name of a user or group";
            "a name has letters, digits and `_.-@\\+$`, 1 to {MAXIMUM_ACCOUNT_NAME} of them, and \
             begins with a letter, a digit or one of `_.\\`; name each on a line of its own";
        /// A user, a group or `default` twice.
        Repeated { subject: String, line: usize }
            => "`{subject}` stands in line {line} already"; "write it once";
        /// More than [`MAXIMUM_LOGIN_USERS`].
        TooManyUsers => "there are more than {MAXIMUM_LOGIN_USERS} users";
            "give the label to a group of theirs";
        /// More than [`MAXIMUM_LOGIN_GROUPS`].
        TooManyGroups => "there are more than {MAXIMUM_LOGIN_GROUPS} groups";
            "write lines for those whose members get another label than `default` says";
    }
}
