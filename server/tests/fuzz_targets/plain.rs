//! Plain data as postcard writes it, field by field: a serializer that notes what stands where.

use serde::ser::{self, Serialize};

use super::shape::{Form, Prefix, Shape};

/// The fields of `data` as postcard writes them.
///
/// # Panics
/// If postcard writes something else.
pub fn plain<T: Serialize>(data: &T) -> Shape {
    let mut notes = Notes(Shape::default());
    let group = notes.0.open(Prefix::Nothing);
    data.serialize(&mut notes).expect("plain data");
    notes.0.close(group);
    assert_eq!(notes.0.whole(), postcard::to_stdvec(data).expect("plain data"));
    notes.0
}

struct Notes(Shape);

impl Notes {
    fn varint(&mut self, value: u128) -> Result<(), Never> {
        self.0.number(value, Form::Varint);
        Ok(())
    }

    fn zigzag(&mut self, value: i64) -> Result<(), Never> {
        self.varint(u128::from((value << 1) as u64 ^ (value >> 63) as u64))
    }

    fn fixed(&mut self, value: u64, width: u8) -> Result<(), Never> {
        self.0.number(u128::from(value), Form::Fixed(width));
        Ok(())
    }

    fn group(&mut self, prefix: Prefix) -> Parts<'_> {
        let at = self.0.open(prefix);
        Parts { notes: self, at, pair: 0 }
    }

    fn variant(&mut self, variant: u32) -> Parts<'_> {
        let at = self.0.open(Prefix::Nothing);
        self.0.number(u128::from(variant), Form::Varint);
        Parts { notes: self, at, pair: 0 }
    }
}

/// What plain data never is.
#[derive(Debug)]
struct Never(String);

impl std::fmt::Display for Never {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Never {}

impl ser::Error for Never {
    fn custom<T: std::fmt::Display>(text: T) -> Never {
        Never(text.to_string())
    }
}

struct Parts<'n> {
    notes: &'n mut Notes,
    at: usize,
    /// The pair of a map whose value comes next.
    pair: usize,
}

impl Parts<'_> {
    fn part<T: Serialize + ?Sized>(&mut self, part: &T) -> Result<(), Never> {
        part.serialize(&mut *self.notes)
    }

    fn done(self) -> Result<(), Never> {
        self.notes.0.close(self.at);
        Ok(())
    }
}

impl<'n> ser::Serializer for &'n mut Notes {
    type Ok = ();
    type Error = Never;
    type SerializeSeq = Parts<'n>;
    type SerializeTuple = Parts<'n>;
    type SerializeTupleStruct = Parts<'n>;
    type SerializeTupleVariant = Parts<'n>;
    type SerializeMap = Parts<'n>;
    type SerializeStruct = Parts<'n>;
    type SerializeStructVariant = Parts<'n>;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, value: bool) -> Result<(), Never> {
        self.fixed(u64::from(value), 1)
    }

    fn serialize_i8(self, value: i8) -> Result<(), Never> {
        self.fixed(u64::from(value as u8), 1)
    }

    fn serialize_i16(self, value: i16) -> Result<(), Never> {
        self.zigzag(i64::from(value))
    }

    fn serialize_i32(self, value: i32) -> Result<(), Never> {
        self.zigzag(i64::from(value))
    }

    fn serialize_i64(self, value: i64) -> Result<(), Never> {
        self.zigzag(value)
    }

    fn serialize_u8(self, value: u8) -> Result<(), Never> {
        self.fixed(u64::from(value), 1)
    }

    fn serialize_u16(self, value: u16) -> Result<(), Never> {
        self.varint(u128::from(value))
    }

    fn serialize_u32(self, value: u32) -> Result<(), Never> {
        self.varint(u128::from(value))
    }

    fn serialize_u64(self, value: u64) -> Result<(), Never> {
        self.varint(u128::from(value))
    }

    fn serialize_u128(self, value: u128) -> Result<(), Never> {
        self.varint(value)
    }

    fn serialize_f32(self, value: f32) -> Result<(), Never> {
        self.fixed(u64::from(value.to_bits()), 4)
    }

    fn serialize_f64(self, value: f64) -> Result<(), Never> {
        self.fixed(value.to_bits(), 8)
    }

    fn serialize_char(self, value: char) -> Result<(), Never> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Never> {
        self.serialize_bytes(value.as_bytes())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Never> {
        let group = self.0.open(Prefix::Length(Form::Varint));
        self.0.bytes(value);
        self.0.close(group);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Never> {
        self.group(Prefix::Count(Form::Fixed(1))).done()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Never> {
        // One part, whatever it is made of.
        let mut option = self.group(Prefix::Count(Form::Fixed(1)));
        let inside = option.notes.0.open(Prefix::Nothing);
        option.part(value)?;
        option.notes.0.close(inside);
        option.done()
    }

    fn serialize_unit(self) -> Result<(), Never> {
        self.group(Prefix::Nothing).done()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Never> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, variant: u32, _: &'static str) -> Result<(), Never> {
        self.variant(variant).done()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Never> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        variant: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Never> {
        let mut parts = self.variant(variant);
        parts.part(value)?;
        parts.done()
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Parts<'n>, Never> {
        Ok(self.group(Prefix::Count(Form::Varint)))
    }

    fn serialize_tuple(self, _: usize) -> Result<Parts<'n>, Never> {
        Ok(self.group(Prefix::Nothing))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Parts<'n>, Never> {
        Ok(self.group(Prefix::Nothing))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        variant: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'n>, Never> {
        Ok(self.variant(variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Parts<'n>, Never> {
        Ok(self.group(Prefix::Count(Form::Varint)))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Parts<'n>, Never> {
        Ok(self.group(Prefix::Nothing))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        variant: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'n>, Never> {
        Ok(self.variant(variant))
    }
}

impl ser::SerializeSeq for Parts<'_> {
    type Ok = ();
    type Error = Never;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        self.part(value)
    }

    fn end(self) -> Result<(), Never> {
        self.done()
    }
}

impl ser::SerializeTuple for Parts<'_> {
    type Ok = ();
    type Error = Never;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        self.part(value)
    }

    fn end(self) -> Result<(), Never> {
        self.done()
    }
}

impl ser::SerializeTupleStruct for Parts<'_> {
    type Ok = ();
    type Error = Never;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        self.part(value)
    }

    fn end(self) -> Result<(), Never> {
        self.done()
    }
}

impl ser::SerializeTupleVariant for Parts<'_> {
    type Ok = ();
    type Error = Never;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        self.part(value)
    }

    fn end(self) -> Result<(), Never> {
        self.done()
    }
}

impl ser::SerializeMap for Parts<'_> {
    type Ok = ();
    type Error = Never;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Never> {
        self.pair = self.notes.0.open(Prefix::Nothing);
        self.part(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        self.part(value)?;
        self.notes.0.close(self.pair);
        Ok(())
    }

    fn end(self) -> Result<(), Never> {
        self.done()
    }
}

impl ser::SerializeStruct for Parts<'_> {
    type Ok = ();
    type Error = Never;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Result<(), Never> {
        self.part(value)
    }

    fn end(self) -> Result<(), Never> {
        self.done()
    }
}

impl ser::SerializeStructVariant for Parts<'_> {
    type Ok = ();
    type Error = Never;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Result<(), Never> {
        self.part(value)
    }

    fn end(self) -> Result<(), Never> {
        self.done()
    }
}
