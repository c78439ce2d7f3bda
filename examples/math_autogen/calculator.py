"""The calculator behind the tool, and what counts as the right number: exact, by fractions."""

from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
MAX_LENGTH = 200
MAX_BITS = 4096
"""Of a power's result: `9**9**9` is refused, not computed."""
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:[,_]\d{3})*(?!\d)(?:\.\d+|/\d+)?", re.ASCII)
NOTE = "only numbers and + - * / ** ( )"


def calculate(expression: str) -> str:
    """Works out an arithmetic expression and gives the result as text.

    A result that has no finite decimals is given as a fraction with its rounded value, as in Calc-X: `2/3 = around 0.666667`.

    Raises:
        ValueError: not arithmetic, a division by zero, or too large.
    """
    result = evaluate(expression)
    if (finite := _finite_decimal(result)) is not None:
        return finite
    return f"{result} = around {float(result):.6g}"


def evaluate(expression: str) -> Fraction:
    """The exact value of an arithmetic expression.

    Raises:
        ValueError: as for `calculate`.
    """
    text = expression.strip()
    if not re.fullmatch(rf"[-+*/() .\d_]{{1,{MAX_LENGTH}}}", text, re.ASCII):
        raise ValueError(NOTE)
    try:
        return _value(text, ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise ValueError(NOTE) from error
    except ZeroDivisionError as error:
        raise ValueError("division by zero") from error


def last_number(text: str) -> Fraction | None:
    """The last number of a text, as `41`, `-3.5`, `1,200`, `1_200` or `2/3`; None if there is none."""
    return number(found[-1]) if (found := NUMBER.findall(text)) else None


def number(text: str) -> Fraction | None:
    """A text that is one number and nothing else; None if it is not."""
    if not NUMBER.fullmatch(text):
        return None
    try:
        return Fraction(re.sub("[,_]", "", text))
    except ZeroDivisionError:
        return None


def same_number(given: Fraction, expected: Fraction) -> bool:
    """Whether `given` is the number, or, where that has no finite decimals, the number rounded to two places or more."""
    if given == expected or _finite_decimal(expected) is not None:
        return given == expected
    places = len((_finite_decimal(given) or "").partition(".")[2])
    return places >= 2 and given == round(expected, places) and abs(given - expected) < abs(expected) / 100


def _value(text: str, node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            return Fraction((ast.get_source_segment(text, node) or "").rstrip("."))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(text, operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(text, operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(text, left), _value(text, right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return Fraction(OPERATORS[type(op)](_value(text, left), _value(text, right)))
        case _:
            raise ValueError(NOTE)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("only whole powers")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if size * abs(exponent.numerator) > MAX_BITS:
        raise ValueError("too large")
    return Fraction(base**exponent.numerator)


def _finite_decimal(number: Fraction) -> str | None:
    """A number's decimals written out; None if they do not end."""
    rest, places = number.denominator, 0
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        places = max(places, power)
    if rest != 1:
        return None
    if not places:
        return str(number.numerator)
    digits = f"{abs(number.numerator) * 10**places // number.denominator:0{places + 1}d}"
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"
