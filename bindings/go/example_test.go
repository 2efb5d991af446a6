package ds41_test

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	ds41 "github.com/libds41/libds41/bindings/go"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func Example() {
	path := exampleCheckpoint()
	defer os.RemoveAll(filepath.Dir(path))
	const nTokens, nLayers, dim = 3, 6, 64
	rows := make([]ds41.BF16, nTokens*dim)
	for i := range rows {
		rows[i] = ds41.ToBF16(float32(i%5) / 8)
	}

	model, err := ds41.Load(path, nil) // a folder of the release, a safetensors file, or a GGUF
	check(err)
	defer model.Close()
	ctx, err := model.NewContext(nil)
	check(err)
	defer ctx.Close()
	seq, err := model.NewSequence()
	check(err)
	defer seq.Close()
	x, err := ds41.NewTensor(rows, nTokens, dim) // a view of the slice; a layer may work in place
	check(err)
	for layer := 0; layer < nLayers; layer++ {
		check(ctx.Prefill(layer, seq, x, 0, x))
	}
	last, err := x.Rows(nTokens-1, nTokens)
	check(err)
	step, err := ctx.DecodePrep(ds41.Span{Seq: seq, StartPos: nTokens, Tokens: 1}) // once for all layers
	check(err)
	for layer := 0; layer < nLayers; layer++ {
		check(step.Body(layer, last, last))
	}

	position, err := seq.Position(ds41.AllLayers)
	check(err)
	fmt.Println(position, "tokens")
	// Output: 4 tokens
}

// Where the backend has graphs, each step of two sequences is one launch.
func ExampleStep_Capture() {
	path := exampleCheckpoint()
	defer os.RemoveAll(filepath.Dir(path))
	const nSeqs, nLayers, dim = 2, 6, 64
	rows := make([]ds41.BF16, nSeqs*dim)
	for i := range rows {
		rows[i] = ds41.ToBF16(float32(i%5) / 8)
	}

	model, err := ds41.Load(path, nil)
	check(err)
	defer model.Close()
	ctx, err := model.NewContext(nil)
	check(err)
	defer ctx.Close()
	a, err := model.NewSequence()
	check(err)
	defer a.Close()
	b, err := model.NewSequence()
	check(err)
	defer b.Close()
	buffer, err := model.NewBuffer(len(rows) * 2) // a graph keeps the addresses of its rows
	check(err)
	defer buffer.Close()
	x, err := buffer.Tensor(ds41.DTypeBF16, 0, nSeqs, dim)
	check(err)
	capturable := true
	for layer := 0; layer < nLayers && capturable; layer++ {
		capturable, err = ctx.DecodeCapturable(layer)
		check(err)
	}
	layers := func(body func(layer int, x, out *ds41.Tensor) error) error {
		for layer := 0; layer < nLayers; layer++ {
			if err := body(layer, x, x); err != nil {
				return err
			}
		}
		return nil
	}
	var graph *ds41.Graph
	for position := int64(0); position < 8; position++ {
		check(buffer.Upload(0, ds41.Bytes(rows)))
		step, err := ctx.DecodePrep(ds41.Span{Seq: a, StartPos: position, Tokens: 1},
			ds41.Span{Seq: b, StartPos: position, Tokens: 1})
		check(err)
		if capturable && graph == nil { // once; the capture runs nothing
			graph, err = step.Capture(func(capture *ds41.Capture) error { return layers(capture.Body) })
			check(err)
			defer graph.Close()
		}
		if graph != nil {
			check(step.Launch(graph))
		} else {
			check(layers(step.Body))
		}
		check(ctx.Synchronize())
		check(buffer.Download(0, ds41.Bytes(rows))) // the next tokens
	}

	position, err := b.Position(ds41.AllLayers)
	check(err)
	fmt.Println(position, "tokens each")
	// Output: 8 tokens each
}

// exampleCheckpoint is a golden case as a safetensors file with its config.json beside it.
func exampleCheckpoint() string {
	const fixture = "../../tests/fixtures/a_golden_stable.safetensors"
	folder, err := os.MkdirTemp("", "ds41-example")
	check(err)
	file, err := ds41.OpenFile(fixture)
	check(err)
	defer file.Close()
	config, _, err := file.Metadata("config")
	check(err)
	check(os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o600))
	weights, err := os.ReadFile(fixture)
	check(err)
	path := filepath.Join(folder, "model.safetensors")
	check(os.WriteFile(path, weights, 0o600))
	return path
}

// What the README shows in Go is a part of a program that is run.
func TestReadmeQuotesTheExamples(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllSubmatch(readme, -1)
	if len(blocks) == 0 {
		t.Skip("the README has no Go")
	}
	var sources []string
	for _, path := range []string{"example_test.go", "example/quickstart/main.go"} {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, string(source))
	}
	for _, block := range blocks {
		if !strings.Contains(sources[0], string(block[1])) && !strings.Contains(sources[1], string(block[1])) {
			t.Errorf("no example has the block that begins with %q", bytes.SplitN(block[1], []byte("\n"), 2)[0])
		}
	}
}
