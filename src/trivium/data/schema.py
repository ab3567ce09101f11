"""Schemas: decide which column of a record each field of a task is read from.

A task declares its fields and their usual column names once. For every layout (the column names of
a record), a schema decides once which column each field is read from. A run prints these decisions.
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
"""A layout: the usual column of the first field, or usual columns of the first fields, in order."""


class Fields:
    """Fields whose columns are chosen together, such as a text and its pair.

    Args:
        names: the names of the fields, separated by spaces. A field that ends in "?" is optional.
        usual: groups of layouts. A layout consists of the usual column names of the fields, which
            are matched without regard to case. The first group with a layout that the record
            contains decides. A layout that is part of another matching layout of the group, such as
            ("text",) of ("text", "pair"), is ignored. If several layouts remain, the record is
            ambiguous.
        both_in: if set, the two fields are versions of one text, such as two languages. A column
            with this name may contain a nested column for each field. If the user has set only one
            field, the other field is read from the only other column, or from the first other
            column of a table without a header.
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

    def usual_of(self, name: str) -> list[str]:
        """Return the usual columns of a field; a column with the field's own name comes first."""
        layouts = (layout for group in self.usual for layout in group)
        usual = dict.fromkeys(layout[name] for layout in layouts if name in layout)
        return sorted(usual, key=lambda column: column != name)

    def missing_required(self, names: Collection[str]) -> list[tuple[str, str]]:
        """Return (description, field) for every required field without a column.

        The description is used in the error message. `names` are the fields that have a column.
        """
        lacks = [name for name in self.names if name in self.required and name not in names]
        return [(f"for the {one} (such as {', '.join(self.usual_of(one))})", one) for one in lacks]

    def matching_layouts(
        self, columns: Mapping[str, str], chosen: Mapping[str, str], settable: frozenset[str]
    ) -> list[dict[str, str]]:
        """Return the matching layouts of a record, as dictionaries from fields to columns.

        Fields whose column the user has set are left out. More than one layout means that the
        record is ambiguous.

        Args:
            columns: the columns that the user has not set, by their names in lower case.
            chosen: the columns that the user has set, by field.
            settable: the fields whose column can be set. If the user has set one field, other
                optional settable fields are left out: a user who sets only `text_field` wants no
                pair.
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


def layout_line(columns: Mapping[str, str], ignored: Sequence[str]) -> str:
    """Return a line such as: text <- review, label <- stars; ignored: id, source."""
    line = ", ".join(f"{name} <- {_label_column(column)}" for name, column in columns.items())
    if not ignored:
        return line
    others = [_label_column(column) for column in ignored[:_MAX_IGNORED]]
    if len(ignored) > _MAX_IGNORED:
        others.append(translated("data.more_columns", count=len(ignored) - _MAX_IGNORED))
    return translated("data.columns", line=line, columns=", ".join(others))


def _label_column(column: str) -> str:
    """Return a column name for messages. A column of a table without a header has a number."""
    return f"column {column}" if column.isdecimal() else shorten(column, 40) or '""'


Slot = Fields | tuple[str, tuple[Fields, ...]]
"""Fields whose columns are chosen together; or a name for messages and alternatives of `Fields`."""


@dataclasses.dataclass(frozen=True)
class Schema:
    """The fields that a task reads, with the columns that the user has set.

    Args:
        slots: the fields. Among alternatives, the first one that a record contains is read.
        chosen: columns by field. Several column names, separated by commas, are tried in order.
        settable: the fields whose column can be set.
        option: a template for the option that sets a column, with {} for the field.
        also: further columns that are read, such as those of rewards. If None, any column may be
            read, and none is reported as ignored.
        if_data: the advice for a table whose first line is data and not a header.
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
        """Find the column of every field. Sets `record.columns` and returns it.

        Raises DataError if a required field has no column, or if several columns match a field.
        """
        key = tuple(record.column_names())
        if key not in self._layouts:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            columns = self._find_columns(record)
            self._layouts[key] = columns, layout_line(columns, self._list_ignored(record, columns))
        record.columns, line = self._layouts[key]
        record.report = report
        if report is not None and self.slots:
            report.add_layout(line, record.where)
        return record.columns

    def fits(self, names: Sequence[str]) -> bool:
        """Return whether a record with these column names has all required fields."""
        try:
            return bool(self._find_columns(Record(dict.fromkeys(names), "")))
        except DataError:
            return False

    def _find_columns(self, record: Record) -> dict[str, str]:
        """Return the column of every field of a record. Raises DataError as in `resolve`."""
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
                missing += several[0].missing_required(columns)
        if missing:
            raise self.no_column(record, missing)
        twice = [name for name, one in columns.items() if [*columns.values()].count(one) > 1]
        if twice:
            both = f'{" and ".join(twice)} are both the column "{columns[twice[0]]}"'
            raise DataError(f"{record.where}: {both}.")
        return columns

    def _match_fields(
        self, fields: Fields, record: Record, free: Mapping[str, str], chosen: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the columns of fields that are chosen together; some may have no column.

        Args:
            fields: the fields.
            record: the record.
            free: the columns that the user has not set, by their names in lower case.
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
        parts = fields.matching_layouts(free, match, self.settable)
        if len(parts) > 1:
            raise self._make_ambiguity_error(record, fields, parts)
        match |= parts[0] if parts else {}
        return {name: match[name] for name in fields.names if name in match}

    def _list_ignored(self, record: Record, columns: Mapping[str, str]) -> tuple[str, ...]:
        """Return the columns of a record that are not read.

        If some nested columns of a column are read, its other nested columns are listed.
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
        self, record: Record, fields: Fields, parts: Sequence[Mapping[str, str]]
    ) -> DataError:
        """Return the DataError for a record that matches several layouts."""
        problems: list[str] = []
        options: list[str] = []
        for name in fields.names:
            several = list(dict.fromkeys(part[name] for part in parts if name in part))
            if len(several) > 1:
                shown = ", ".join(f'"{shorten(one, 40)}"' for one in several)
                problems.append(f"for the {name}: {shown}")
                options += self._find_options(name)
        choose = (
            f"Choose with {' '.join(options)}" if any(options) else "Remove or rename the others"
        )
        return DataError(
            f"{record.table_or_row} has several columns {'; '.join(problems)}. {choose}."
        )

    def _find_options(self, fields: str) -> list[str]:
        """Return the options that set the columns of some fields.

        `fields` contains names separated by spaces; the word "or" between alternatives is kept.
        """
        names = [name for name in fields.split() if name == "or" or name in self.settable]
        return [name if name == "or" else self.option.format(name) for name in names]

    def no_column(self, record: Record, missing: Sequence[tuple[str, str]]) -> DataError:
        """Return the DataError for missing columns.

        Each element of `missing` is a description of the missing column, and the fields that need
        it.
        """
        options = [one for _, fields in missing for one in self._find_options(fields)]
        return record.no_column([what for what, _ in missing], options, if_data=self.if_data)
