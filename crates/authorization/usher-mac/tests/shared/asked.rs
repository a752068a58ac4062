//! Questions to a module that is compiled for user space with `asked.h`.

use std::path::PathBuf;

use usher_mac::EntryPoint;

/// The process that asks.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// The real, effective, saved and file system user id.
    pub uids: [u32; 4],
    /// The real, effective, saved and file system group id.
    pub gids: [u32; 4],
    /// At most four.
    pub groups: Vec<u32>,
    pub capabilities: u64,
}

/// A question to a module.
#[derive(Debug, Clone)]
pub struct Question<'q> {
    pub point: EntryPoint,
    pub process: &'q Process,
    pub request: Vec<u8>,
    /// The elements of the process and of the object, and a third one, which depends on the entry point: the
    /// directory's, the wanted one or the decided one.
    pub labels: [Vec<u8>; 3],
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Question<'_> {
    fn encode(&self) -> Vec<u8> {
        let process = self.process;
        let mut groups = process.groups.clone();
        groups.resize(4, 0);
        let mut bytes = words(&[self.point as u32, process.groups.len() as u32]);
        bytes.extend(words(&groups));
        bytes.extend(words(&process.uids));
        bytes.extend(words(&process.gids));
        bytes.extend(process.capabilities.to_ne_bytes());
        bytes.extend(words(&[77, 0]));
        let parts = [(&self.request, 128)].into_iter();
        for (part, size) in parts.chain(self.labels.iter().map(|label| (label, 120))) {
            let mut part = part.clone();
            part.resize(size, 0);
            bytes.extend(part);
        }
        bytes
    }
}

/// The module's answers, each with the last element as the module left it.
pub fn ask(program: &PathBuf, settings: &[u8], questions: &[Question<'_>]) -> Vec<(i32, Vec<u8>)> {
    let mut input = Vec::new();
    for question in questions {
        input.extend(settings);
        input.extend(question.encode());
    }
    let output = super::compiled::run(program, &input);
    let (answers, rest) = output.as_chunks::<124>();
    assert!(rest.is_empty() && answers.len() == questions.len());
    let answers = answers.iter().map(|answer| {
        let code = i32::from_ne_bytes(answer[..4].try_into().unwrap());
        (code, answer[4..].to_vec())
    });
    answers.collect()
}
