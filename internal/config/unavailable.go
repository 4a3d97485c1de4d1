package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Unavailable is how many of so many workers may be upgraded at once: the
// number, or the percentage rounded up, and never less than 1.
func (u Upgrade) Unavailable(workers int) int {
	amount, percent, err := parseUnavailable(u.MaxUnavailable)
	if err != nil {
		return 1 // Validate has refused it; the careful answer for a value that was never validated
	}
	if percent {
		amount = (workers*amount + 99) / 100
	}
	return max(1, amount)
}

func parseUnavailable(text string) (amount int, percent bool, err error) {
	digits, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	amount, err = strconv.Atoi(digits)
	switch {
	case err != nil || amount < 1:
		return 0, false, fmt.Errorf("must be a number of workers from 1, or a percentage such as 25%%, not %q", brief(text))
	case percent && amount > 100:
		return 0, false, fmt.Errorf("a percentage must be from 1%% to 100%%, not %q", brief(text))
	}
	return amount, percent, nil
}
