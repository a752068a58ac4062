//! The inputs that all targets share.

/// Names without their outcome, and bytes.
pub type Inputs = Vec<(String, Vec<u8>)>;

/// The value itself and what goes wrong with any format: cut, followed, all ones, a byte changed.
pub fn variations(name: &str, bytes: Vec<u8>, changed: &[(&str, usize, u8)]) -> Inputs {
    let mut inputs = vec![(format!("{name}-cut"), bytes[..bytes.len() - 1].to_vec())];
    inputs.push((
        format!("{name}-followed"),
        [bytes.as_slice(), &[0]].concat(),
    ));
    for &(what, position, value) in changed {
        let mut other = bytes.clone();
        other[position] = value;
        inputs.push((format!("{name}-{what}"), other));
    }
    inputs.push((name.to_owned(), bytes));
    inputs
}

pub fn common_to_all(limit: usize) -> Inputs {
    vec![
        ("empty".to_owned(), Vec::new()),
        ("beyond-the-limit".to_owned(), vec![0; limit + 1]),
    ]
}
