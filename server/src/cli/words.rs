//! Command lines as text: cutting them into words, and putting words together so that a shell reads them back.

/// Cuts a script into commands and these into words, as a shell does: blanks, `;`, single and double quotes,
/// backslashes; nothing is expanded.
pub fn split(script: &str) -> Result<Vec<Vec<String>>, String> {
    let mut commands = Vec::new();
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = script.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some('\''), _) => word.get_or_insert_default().push(letter),
            (_, '\\') => word.get_or_insert_default().push(letters.next().ok_or("a backslash at the end")?),
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ';' | '\n') => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    if let Some(open) = quote {
        return Err(format!("a {open} is not closed"));
    }
    words.extend(word);
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    Ok(commands)
}

/// Words as a line that a shell, or [`split`], reads as the same words.
#[must_use]
pub fn join<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> String {
    words.into_iter().map(|word| quote(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// One word, quoted if it has to be.
#[must_use]
pub fn quote(word: &str) -> String {
    let plain = !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-,:=@+%^~".contains(&b));
    // A tilde at the beginning would become a home directory.
    if plain && !word.starts_with('~') { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_needs_quotes_gets_them() {
        assert_eq!(
            join(["coppice", "scan", "a..b", "two words", "it's", "", "a;b"]),
            r"coppice scan a..b 'two words' 'it'\''s' '' 'a;b'"
        );
    }

    proptest! {
        #[test]
        fn what_is_joined_is_split_into_the_same_words(words in proptest::collection::vec(any::<String>(), 1..5)) {
            prop_assert_eq!(split(&join(&words)), Ok(vec![words]));
        }
    }
}
