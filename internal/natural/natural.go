// Package natural orders names as people count them: w2 before w10.
package natural

import (
	"cmp"
	"slices"
	"strings"
)

// Compare returns -1, 0 or 1 for a before, equal to or after b. Numbers in the names are
// compared by their value, everything else byte by byte. Only equal names are equal.
func Compare(a, b string) int {
	restA, restB := a, b
	for restA != "" && restB != "" {
		var partA, partB string
		partA, restA = next(restA)
		partB, restB = next(restB)
		if order := comparePart(partA, partB); order != 0 {
			return order
		}
	}
	return cmp.Or(cmp.Compare(len(restA), len(restB)), strings.Compare(a, b))
}

// Sorted returns the names in their order; the list that is given stays as it is.
func Sorted(names []string) []string {
	return slices.SortedFunc(slices.Values(names), Compare)
}

// next cuts the number, or else the one byte, that a name begins with.
func next(name string) (part, rest string) {
	length := len(name) - len(strings.TrimLeft(name, digits))
	length = max(length, 1)
	return name[:length], name[length:]
}

const digits = "0123456789"

func comparePart(a, b string) int {
	if !isNumber(a) || !isNumber(b) {
		return strings.Compare(a, b)
	}
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func isNumber(part string) bool { return strings.IndexByte(digits, part[0]) >= 0 }
