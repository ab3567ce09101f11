"""Schemas: which column of a record is which field of a task.

A task declares its fields once, with the usual names of their columns. A schema decides once for
every layout (the names of a record's columns) which column each field is read from. A run prints
these decisions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from trivium.data.records import ReadReport, Record
from trivium.errors import DataError, shorten
from trivium.messages import translated

_SHOWN = 12  # ignored columns in a line
_LAYOUTS = 1000  # that are kept
Usual = str | tuple[str, ...]
"""A usual column of the first field, or one usual column for each of the first fields."""


class Fields:
    """Fields that are looked up together, such as a text and its pair.

    Args:
        names: names of the fields, separated by spaces; a field that ends in "?" is optional.
        usual: groups of layouts, which are the usual columns of the fields, in upper or lower case.
            The first group with a layout that the record has decides. A layout that is contained
            in another one of the group, such as ("text",) in ("text", "pair"), gives way to it. If
            several layouts are left, the record is ambiguous.
        both_in: the two fields are two versions of one text, such as two languages. A column of
            this name may contain a column for each. If only one field is set, the other field
            takes the only other column, or the first other column of a table without a header.
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
        """Return the usual columns of a field. A column with the name of the field comes first."""
        layouts = (layout for group in self.usual for layout in group)
        usual = dict.fromkeys(layout[name] for layout in layouts if name in layout)
        return sorted(usual, key=lambda column: column != name)

    def lacking(self, names: Collection[str]) -> list[tuple[str, str]]:
        """Return a text for the error message, and the field, for every required field that lacks.

        `names` are the fields that have a column.
        """
        lacks = [name for name in self.names if name in self.required and name not in names]
        return [(f"for the {one} (such as {', '.join(self.usual_of(one))})", one) for one in lacks]

    def candidates(
        self, columns: Mapping[str, str], chosen: Mapping[str, str], settable: frozenset[str]
    ) -> list[dict[str, str]]:
        """Return the layouts that a record has, as columns by field, without the chosen fields.

        The record is ambiguous if there is more than one.

        Args:
            columns: the names of the columns that are not chosen, by their names in lower case.
            chosen: the columns that the user has set, by field.
            settable: the fields whose column can be set. If the user has set a field, the optional
                ones among the others are left out: who sets only `text_field` wants no pair.
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
            # Layouts with the columns that are set take precedence.
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
    line = ", ".join(f"{name} <- {_shown(column)}" for name, column in columns.items())
    if not ignored:
        return line
    others = [_shown(column) for column in ignored[:_SHOWN]]
    if len(ignored) > _SHOWN:
        others.append(translated("data.more_columns", count=len(ignored) - _SHOWN))
    return translated("data.columns", line=line, columns=", ".join(others))


def _shown(column: str) -> str:
    """Return the name of a column in a message; columns of a file without a header have numbers."""
    return f"column {column}" if column.isdecimal() else shorten(column, 40) or '""'


Slot = Fields | tuple[str, tuple[Fields, ...]]
"""Fields that are looked up together; or a name for messages, with alternatives of such fields."""


@dataclasses.dataclass(frozen=True)
class Schema:
    """The fields that a task reads, with the columns that a user has set.

    Args:
        slots: the fields. Of several alternatives, the first that a record has is read.
        chosen: columns by field; several names separated by commas are tried in order.
        settable: the fields whose column can be set.
        option: the option that sets a column, with {} for the field.
        also: further columns that are read, such as those of rewards. If None, any column may be
            read, and none is reported as ignored.
        if_data: what to do if the first line of a table is not a header.
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
        """Set the `columns` of a record, and return them: the column of every field.

        Raises DataError if a required field has no column, or if several columns could be meant.
        """
        key = tuple(record.column_names())
        if key not in self._layouts:
            if len(self._layouts) >= _LAYOUTS:
                self._layouts.clear()
            columns = self._decide(record)
            self._layouts[key] = columns, layout_line(columns, self._ignored(record, columns))
        record.columns, line = self._layouts[key]
        record.report = report
        if report is not None and self.slots:
            report.add_layout(line, record.where)
        return record.columns

    def fits(self, names: Sequence[str]) -> bool:
        """Return whether the names of columns are enough for all required fields."""
        try:
            return bool(self._decide(Record(dict.fromkeys(names), "")))
        except DataError:
            return False

    def _decide(self, record: Record) -> dict[str, str]:
        own: dict[str, str] = {}
        for field, name in self.chosen.items():
            own[field] = next(filter(record.has, (name, *map(str.strip, name.split(",")))), name)
        missing = [(f'"{name}"', field) for field, name in own.items() if not record.has(name)]
        names = reversed(record.column_names())
        free = {name.lower(): name for name in names if name not in own.values()}
        found: dict[str, str] = {}
        for slot in self.slots:
            what, fields = slot if isinstance(slot, tuple) else ("", (slot,))
            several = [one for one in fields if own.keys() & {*one.names}] or [*fields]
            matches = [self._match(one, record, free, own) for one in several]
            whole = [one for fields, one in zip(several, matches) if fields.required <= one.keys()]
            found |= (whole or matches)[0]
            if not whole and len(several) > 1:
                usual = ", ".join(" with ".join(one) for fields in several for one in fields.shown)
                options = " or ".join(" ".join(fields.names) for fields in several)
                missing.append((f"for the {what} (such as {usual})", options))
            elif not whole:
                missing += several[0].lacking(found)
        if missing:
            raise self.no_column(record, missing)
        twice = [name for name, one in found.items() if [*found.values()].count(one) > 1]
        if twice:
            both = f'{" and ".join(twice)} are both the column "{found[twice[0]]}"'
            raise DataError(f"{record.where}: {both}.")
        return found

    def _match(
        self, fields: Fields, record: Record, free: Mapping[str, str], own: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the columns of fields. A field without a column is left out."""
        match = {name: own[name] for name in fields.names if name in own}
        rest = fields.required - match.keys()
        is_pair = len(record) == 2 or record.is_numbered
        if fields.both_in and is_pair and match and len(rest) == 1 and free:
            return match | {rest.pop(): [*free.values()][-1]}
        inner = [one for one in record.column_names() if one.startswith(f"{fields.both_in}.")]
        if not match and len(inner) == 2:
            return dict(zip(fields.names, inner))
        parts = fields.candidates(free, match, self.settable)
        if len(parts) > 1:
            raise self._ambiguous(record, fields, parts)
        match |= parts[0] if parts else {}
        return {name: match[name] for name in fields.names if name in match}

    def _ignored(self, record: Record, found: Mapping[str, str]) -> tuple[str, ...]:
        if self.also is None:
            return ()
        used = {*found.values(), *self.also}
        names: list[str] = []
        for name, value in record.items():
            inner = [f"{name}.{part}" for part in value] if isinstance(value, dict) else []
            if name not in used:
                names += [one for one in inner if one not in used] if used & {*inner} else [name]
        return tuple(names)

    def _ambiguous(
        self, record: Record, fields: Fields, parts: Sequence[Mapping[str, str]]
    ) -> DataError:
        problems: list[str] = []
        options: list[str] = []
        for name in fields.names:
            several = list(dict.fromkeys(part[name] for part in parts if name in part))
            if len(several) > 1:
                shown = ", ".join(f'"{shorten(one, 40)}"' for one in several)
                problems.append(f"for the {name}: {shown}")
                options += self._options(name)
        choose = (
            f"Choose with {' '.join(options)}" if any(options) else "Remove or rename the others"
        )
        return DataError(
            f"{record.table_or_row} has several columns {'; '.join(problems)}. {choose}."
        )

    def _options(self, fields: str) -> list[str]:
        """Return the options that set the columns of fields, with "or" between alternatives."""
        names = [name for name in fields.split() if name == "or" or name in self.settable]
        return [name if name == "or" else self.option.format(name) for name in names]

    def no_column(self, record: Record, missing: Sequence[tuple[str, str]]) -> DataError:
        """Return the error for missing columns, each given as a text and the fields it is for."""
        options = [one for _, fields in missing for one in self._options(fields)]
        return record.no_column([what for what, _ in missing], options, if_data=self.if_data)
