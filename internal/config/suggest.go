package config

import "strings"

// closestName returns the name that a mistyped word was most likely meant to be, or "".
func closestName(word string, names []string) string {
	best, bestDistance := "", max(1, len(word)/3)+1
	for _, name := range names {
		if d := editDistance(strings.ToLower(word), strings.ToLower(name)); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// editDistance returns the edit distance of two words; a swap of neighbours counts as 1
// (optimal string alignment).
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 { // no key is that long: nothing is near
		return max(len(a), len(b))
	}
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
