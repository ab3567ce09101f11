"""Schemas, which map the columns of a record to the fields of a task.

A task declares its fields and their usual column names once. For every layout (the set of column
names of a record), a schema decides once which column each field is read from. A run prints these
decisions.
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
"""A layout: the usual column name of the first field, or those of the first few fields."""


class Fields:
    """A group of fields that are matched to columns together, such as a text and its pair.

    Args:
        names: the names of the fields, separated by spaces. A field that ends in "?" is optional.
        usual: groups of layouts. A layout consists of the usual column names of the fields, which
            are matched case-insensitively. The first group with a layout that the record contains
            is used. A layout that is part of another matching layout of the group, such as
            ("text",) of ("text", "pair"), is ignored. If several layouts remain, the record is
            ambiguous.
        both_in: the usual name of a column with one nested column per field, for two fields that
            are versions of one text, such as two languages. If the user has set the column of only
            one of the fields, the other field is read from the only other column, or from the first
            other column of a table without a header.
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

    def usual_of(self, field: str) -> list[str]:
        """Return the usual column names of a field; the name of the field itself comes first."""
        layouts = (layout for group in self.usual for layout in group)
        usual = dict.fromkeys(layout[field] for layout in layouts if field in layout)
        return sorted(usual, key=lambda column: column != field)

    def find_missing_fields(self, matched: Collection[str]) -> list[tuple[str, str]]:
        """Find the required fields without a matching column. Returns (description, field) pairs.

        The description is used in the error message. `matched` are the fields that have a column.
        """
        lacks = [name for name in self.names if name in self.required and name not in matched]
        return [(f"for the {one} (such as {', '.join(self.usual_of(one))})", one) for one in lacks]

    def find_matching_layouts(
        self, columns: Mapping[str, str], chosen: Mapping[str, str], settable: frozenset[str]
    ) -> list[dict[str, str]]:
        """Find the usual layouts that a record contains. Returns a field-to-column dict for each.

        Fields with a column set by the user are left out. More than one layout means that the
        record is ambiguous.

        Args:
            columns: the columns that the user has not set, by lower-case name.
            chosen: the columns that the user has set, by field.
            settable: the fields that have a setting for the column. If the user has set one field,
                other optional settable fields are left out: a user who sets only `text_field` wants
                no pair.
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
    """Describe in one line which column each field is read from, and which columns are ignored.

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
    """Format a column name for messages. Columns of a table without a header are numbers."""
    return f"column {column}" if column.isdecimal() else shorten(column, 40) or '""'


Slot = Fields | tuple[str, tuple[Fields, ...]]
"""A group of fields; or a pair: a name for messages, and alternative groups of fields."""


@dataclasses.dataclass(frozen=True)
class Schema:
    """The fields that a task reads, with the columns that the user has set.

    Args:
        slots: groups of fields. Of alternative groups, the first one that a record contains is
            read.
        chosen: the columns set by the user, by field. Several columns, separated by commas, are
            tried in order.
        settable: the fields that have a setting for the column.
        option: a template for the name of this setting, with {} for the field.
        also: other columns that are read, such as those of rewards. If None, any column may be
            read, and none is reported as ignored.
        if_data: the advice in case the first line of a table is data, not a header.
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
        """Find the column of every field, store the columns in `record.columns` and return them.

        The layout is also counted in `report`.

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
        """Return whether records with these column names contain all required fields."""
        try:
            return bool(self._find_columns(Record(dict.fromkeys(column_names), "")))
        except DataError:
            return False

    def _find_columns(self, record: Record) -> dict[str, str]:
        """Return the column of every field of a record, without using the cache of layouts.

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
        """Match a group of fields to the columns of a record. Fields without a match are left out.

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

        If a task reads some of the nested columns of a column, the other nested columns are listed.
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
        """Return the DataError for a record that matches several layouts of `fields`."""
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

        `fields` contains names separated by spaces; the word "or" between alternatives is kept.
        """
        names = [name for name in fields.split() if name == "or" or name in self.settable]
        return [name if name == "or" else self.option.format(name) for name in names]

    def make_column_error(self, record: Record, missing: Sequence[tuple[str, str]]) -> DataError:
        """Return the DataError for missing columns, with the settings that can select them.

        Each element of `missing` is a pair: a description of the missing column, and the fields
        (separated by spaces) that need it.
        """
        names = [name for _, fields in missing for name in self._list_options(fields)]
        return record.make_column_error([text for text, _ in missing], names, if_data=self.if_data)
