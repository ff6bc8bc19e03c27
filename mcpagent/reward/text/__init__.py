"""Whether a text says a value: as the kind of thing that it is, in a person's words.

From the bottom up, each on those before it:

- `words.yaml` and `words`: what differs from language to language; `phrasing`: hedges, denials, dumps.
- `canonical`: one spelling for marks, number words and units; `amounts`, `moments`, `names`: numbers with
  their units, dates and times, names; `reading`: where a text says one of these.
- `vocabulary`, `shown`, `fields`, `rates`: words that tell nothing, and what the results of the episode say.
- `naming`, `spans`, `items`, `yes_no`: where a text says the value of an answer of each type.
- `grammar`: what may stand around a value; `rivals`: what speaks against it; `exchange`: values of a record
  under each other's names.
- `line`: the answer line; `free`: a text without one; `abstention`: "I cannot know that".
"""
