"""Schemas, which map the columns of a record to the fields of a fine-tuning task.

A task declares its fields and their usual column names. The schema decides which column each field
is read from. It decides once for every layout, the set of column names of a record. A run prints
these decisions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from trivium.data.records import ReadReport, Record
from trivium.errors import DataError, shorten
from trivium.messages import translated

_MAX_IGNORED = 12  # ignored columns that a line lists
_MAX_LAYOUTS = 1000  # layouts in the cache
Usual = str | tuple[str, ...]
"""The usual column name of the first field, or a tuple for the first few fields (a layout)."""


class Fields:
    """A group of fields that are matched to columns together, such as a text and its pair.

    Args:
        names: the names of the fields, separated by spaces. A field that ends in "?" is optional.
        usual: groups of layouts. A layout is a tuple of usual column names, one per field; case is
            ignored. A layout matches if the record has all of its columns. The first group with a
            matching layout is used. In this group, a matching layout that is part of another, such
            as ("text",) of ("text", "pair"), is ignored. If several layouts remain, the record is
            ambiguous.
        both_in: for two fields that are versions of one text, such as two languages: the usual name
            of a column that contains both fields as nested columns. If the user has set the column
            of only one field, the other field is read from the remaining column of a record with
            two columns, or from the first remaining column of a table without a header.
    """

    def __init__(self, names: str, *usual: Sequence[Usual], both_in: str | None = None) -> None:
        self.names = tuple(name.removesuffix("?") for name in names.split())
        self.required = {name for name in names.split() if not name.endswith("?")}
        self.usual = [
            [dict(zip(self.names, (one,) if isinstance(one, str) else one)) for one in group]
            for group in usual
        ]
        self.shown = dict.fromkeys(
            tuple(one for name, one in layout.items() if name in self.required)
            for group in self.usual
            for layout in group
        )
        self.both_in = both_in

    def get_usual(self, field: str) -> list[str]:
        """Return the usual column names of a field.

        If the name of the field is one of them, it comes first.
        """
        layouts = (layout for group in self.usual for layout in group)
        usual = dict.fromkeys(layout[field] for layout in layouts if field in layout)
        return sorted(usual, key=lambda column: column != field)

    def find_missing_fields(self, matched: Collection[str]) -> list[tuple[str, str]]:
        """Find the required fields without a column. Returns pairs (description, field).

        The description is used in the error message. `matched` are the fields with a column.
        """
        lacks = [name for name in self.names if name in self.required and name not in matched]
        return [(f"for the {one} (such as {', '.join(self.get_usual(one))})", one) for one in lacks]

    def find_matching_layouts(
        self, columns: Mapping[str, str], chosen: Mapping[str, str], settable: frozenset[str]
    ) -> list[dict[str, str]]:
        """Find the usual layouts that match the columns of a record.

        Returns a dictionary from fields to columns for each layout, without the fields whose column
        the user has set. If there is more than one layout, the record is ambiguous.

        Args:
            columns: the columns that the user has not set, by lower-case name.
            chosen: the columns that the user has set, by field.
            settable: the fields whose column the user can set. If the user has set the column of
                one field, the other optional settable fields are left out. For example, a user who
                sets only `text_field` wants no pair.
        """
        wanted = {name for name in self.names if name not in chosen}
        if chosen:
            wanted -= settable - self.required
        both = {**columns, **{column.lower(): column for column in chosen.values()}}
        taken = {*chosen.values()}
        for group in self.usual:
            known = [
                {name: both[one] for name, one in layout.items()}
                for layout in group
                if both.keys() >= {*layout.values()}
            ]
            # Layouts with the columns that the user has set take precedence.
            known = [one for one in known if chosen.items() <= one.items()] or known
            parts = [{name: one[name] for name in one if name in wanted} for one in known]
            parts = [part for part in parts if part and taken.isdisjoint(part.values())]
            sets = [{*part.values()} for part in parts]
            if parts:
                whole = [p for p, own in zip(parts, sets) if not any(own < one for one in sets)]
                return [part for number, part in enumerate(whole) if part not in whole[:number]]
        return []


def format_layout(columns: Mapping[str, str], ignored: Sequence[str]) -> str:
    """Return one line that says which column each field is read from, and which are ignored.

    For example: "text <- review, label <- stars; ignored: id, source".
    """
    line = ", ".join(f"{name} <- {_format_column(column)}" for name, column in columns.items())
    if not ignored:
        return line
    others = [_format_column(column) for column in ignored[:_MAX_IGNORED]]
    if len(ignored) > _MAX_IGNORED:
        others.append(translated("data.more_columns", count=len(ignored) - _MAX_IGNORED))
    return translated("data.columns", line=line, columns=", ".join(others))


def _format_column(column: str) -> str:
    """Return a column name for messages, such as "column 2" in a table without a header."""
    return f"column {column}" if column.isdecimal() else shorten(column, 40) or '""'


Slot = Fields | tuple[str, tuple[Fields, ...]]
"""A group of fields, or a pair of a name for messages and alternative groups of fields."""


@dataclasses.dataclass(frozen=True)
class Schema:
    """The fields that a fine-tuning task reads, and the columns that the user has set for them.

    Args:
        slots: groups of fields. If there are alternative groups, the first group whose columns the
            record has is read.
        chosen: the columns that the user has set, by field. If the user gives several columns,
            separated by commas, the first one that the record has is used.
        settable: the fields whose column the user can set.
        option: a template for the name of the setting that selects a column; {} stands for the
            field.
        also: other columns that the task reads, such as the columns of a reward function. If None,
            the task may read any column, and no column is reported as ignored.
        if_data: advice to show if the first line of a table may be data, not a header.
    """

    slots: Sequence[Slot]
    chosen: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settable: frozenset[str] = frozenset()
    option: str = ""
    also: Sequence[str] | None = ()
    if_data: str = "add a header line"
    _layouts: dict[tuple[str, ...], tuple[dict[str, str], str]] = dataclasses.field(
        default_factory=dict, init=False, compare=False
    )

    def resolve(self, record: Record, report: ReadReport | None = None) -> Mapping[str, str]:
        """Find the column of each field, and store the columns in `record.columns`.

        The layout of the record is counted in `report`. Returns the columns by field.

        Raises DataError if a required field has no column, or if several columns match a field.
        """
        key = tuple(record.column_names())
        if key not in self._layouts:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            columns = self._find_columns(record)
            self._layouts[key] = columns, format_layout(columns, self._list_unused(record, columns))
        record.columns, line = self._layouts[key]
        record.report = report
        if report is not None and self.slots:
            report.add_layout(line, record.where)
        return record.columns

    def fits(self, column_names: Sequence[str]) -> bool:
        """Return whether records with these column names have a column for every required field."""
        try:
            return bool(self._find_columns(Record(dict.fromkeys(column_names), "")))
        except DataError:
            return False

    def _find_columns(self, record: Record) -> dict[str, str]:
        """Return the column of each field of a record. Does not use the cache of layouts.

        Raises the same errors as `resolve`.
        """
        chosen: dict[str, str] = {}
        for field, name in self.chosen.items():
            chosen[field] = next(filter(record.has, (name, *map(str.strip, name.split(",")))), name)
        missing = [(f'"{name}"', field) for field, name in chosen.items() if not record.has(name)]
        names = reversed(record.column_names())
        free = {name.lower(): name for name in names if name not in chosen.values()}
        columns: dict[str, str] = {}
        for slot in self.slots:
            what, fields = slot if isinstance(slot, tuple) else ("", (slot,))
            several = [one for one in fields if chosen.keys() & {*one.names}] or [*fields]
            matches = [self._match_fields(one, record, free, chosen) for one in several]
            whole = [one for fields, one in zip(several, matches) if fields.required <= one.keys()]
            columns |= (whole or matches)[0]
            if not whole and len(several) > 1:
                usual = ", ".join(" with ".join(one) for fields in several for one in fields.shown)
                options = " or ".join(" ".join(fields.names) for fields in several)
                missing.append((f"for the {what} (such as {usual})", options))
            elif not whole:
                missing += several[0].find_missing_fields(columns)
        if missing:
            raise self.make_column_error(record, missing)
        twice = [name for name, one in columns.items() if [*columns.values()].count(one) > 1]
        if twice:
            both = f'{" and ".join(twice)} are both the column "{columns[twice[0]]}"'
            raise DataError(f"{record.where}: {both}.")
        return columns

    def _match_fields(
        self, fields: Fields, record: Record, free: Mapping[str, str], chosen: Mapping[str, str]
    ) -> dict[str, str]:
        """Match a group of fields to the columns of a record.

        Returns the columns by field. Fields without a matching column are left out.

        Args:
            fields: the group of fields.
            record: the record.
            free: the columns that the user has not set, by lower-case name.
            chosen: the columns that the user has set, by field.
        """
        match = {name: chosen[name] for name in fields.names if name in chosen}
        rest = fields.required - match.keys()
        is_pair = len(record) == 2 or record.has_numbered_columns
        if fields.both_in and is_pair and match and len(rest) == 1 and free:
            return match | {rest.pop(): [*free.values()][-1]}
        inner = [one for one in record.column_names() if one.startswith(f"{fields.both_in}.")]
        if not match and len(inner) == 2:
            return dict(zip(fields.names, inner))
        parts = fields.find_matching_layouts(free, match, self.settable)
        if len(parts) > 1:
            raise self._make_ambiguity_error(record, fields, parts)
        match |= parts[0] if parts else {}
        return {name: match[name] for name in fields.names if name in match}

    def _list_unused(self, record: Record, columns: Mapping[str, str]) -> tuple[str, ...]:
        """Return the columns of a record that no field reads.

        If the task reads only some of the nested columns of a column, the other nested columns are
        listed.
        """
        if self.also is None:
            return ()
        used = {*columns.values(), *self.also}
        names: list[str] = []
        for name, value in record.items():
            inner = [f"{name}.{part}" for part in value] if isinstance(value, dict) else []
            if name not in used:
                names += [one for one in inner if one not in used] if used & {*inner} else [name]
        return tuple(names)

    def _make_ambiguity_error(
        self, record: Record, fields: Fields, layouts: Sequence[Mapping[str, str]]
    ) -> DataError:
        """Return a DataError about a record that matches several layouts of `fields`."""
        problems: list[str] = []
        options: list[str] = []
        for name in fields.names:
            several = list(dict.fromkeys(part[name] for part in layouts if name in part))
            if len(several) > 1:
                shown = ", ".join(f'"{shorten(one, 40)}"' for one in several)
                problems.append(f"for the {name}: {shown}")
                options += self._list_options(name)
        choose = (
            f"Choose with {' '.join(options)}" if any(options) else "Remove or rename the others"
        )
        return DataError(
            f"{record.column_source} has several columns {'; '.join(problems)}. {choose}."
        )

    def _list_options(self, fields: str) -> list[str]:
        """Return the names of the settings that select the columns of the given fields.

        `fields` contains names separated by spaces. The word "or" between them is kept.
        """
        names = [name for name in fields.split() if name == "or" or name in self.settable]
        return [name if name == "or" else self.option.format(name) for name in names]

    def make_column_error(self, record: Record, missing: Sequence[tuple[str, str]]) -> DataError:
        """Return a DataError about missing columns. Its message names the settings for them.

        `missing` contains pairs: a description of the missing column, and the fields that need the
        column, separated by spaces.
        """
        names = [name for _, fields in missing for name in self._list_options(fields)]
        return record.make_column_error([text for text, _ in missing], names, if_data=self.if_data)
