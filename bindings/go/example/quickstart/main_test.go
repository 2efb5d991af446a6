package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
)

func TestRunsPromptAndDecodeSteps(t *testing.T) {
	var out bytes.Buffer
	if err := run("../../../../tests/fixtures/a_golden_stable.safetensors", &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{"6 layers, backend \\w+"}
	for _, step := range []string{"12 tokens from position  0", " 1 tokens from position 12", " 1 tokens from position 13",
		" 1 tokens from position 14", " 1 tokens from position 15"} {
		want = append(want, step+`: cache of [1-9]\d* bytes, last row( -?\d+(\.\d+)?(e-\d+)?){4} \.\.\.`)
	}
	if len(lines) != len(want) {
		t.Fatalf("got %d lines, want %d:\n%s", len(lines), len(want), out.String())
	}
	for i, line := range lines {
		if !regexp.MustCompile("^" + want[i] + "$").MatchString(line) {
			t.Errorf("line %d is %q, want %s", i, line, want[i])
		}
	}
}

func TestTellsWhatIsWrongWithTheFile(t *testing.T) {
	var out bytes.Buffer
	if err := run("no-such-file.safetensors", &out); err == nil || !strings.Contains(err.Error(), "no-such-file") {
		t.Errorf("got error %v, want one that names the file", err)
	}
}
