// Quickstart loads attention layers from a safetensors file, runs a prompt of 12 tokens, then decodes 4 more.
//
// A layer's output is the next layer's input here, and the last layer's is the next token, to keep this short: a real
// model has the norms, the residual and the MoE in between. Usage: quickstart [FILE.safetensors]
package main

import (
	"fmt"
	"io"
	"os"

	ds41 "github.com/libds41/libds41/bindings/go"
)

const nPrompt, nDecode = 12, 4

func main() {
	path := "../../tests/fixtures/a_golden_stable.safetensors" // from the module's folder
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	if err := run(path, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart failed:", err)
		os.Exit(1)
	}
}

func run(path string, out io.Writer) error {
	model, config, err := loadModel(path)
	if err != nil {
		return err
	}
	defer model.Close()
	ctx, err := model.NewContext(nil)
	if err != nil {
		return err
	}
	defer ctx.Close()
	seq, err := model.NewSequence()
	if err != nil {
		return err
	}
	defer seq.Close()
	nLayers, dim := len(config.CompressRatios), int(config.Dim)
	fmt.Fprintf(out, "%d layers, backend %s\n", nLayers, model.Backend())

	rows := make([]ds41.BF16, nPrompt*dim)
	for i := range rows {
		rows[i] = ds41.BF16(i&1<<15 | (0x3E00 + i*37%256))
	}
	for pos, n := 0, nPrompt; pos < nPrompt+nDecode; pos, n = pos+n, 1 {
		x, err := ds41.NewTensor(rows[:n*dim], n, dim) // input and output: a layer may work in place
		if err != nil {
			return err
		}
		if err := runStep(ctx, seq, pos, nLayers, x); err != nil {
			return err
		}
		copy(rows, rows[(n-1)*dim:n*dim]) // the next token
		fmt.Fprintf(out, "%2d tokens from position %2d: cache of %d bytes, last row", n, pos, seq.Bytes())
		for _, value := range rows[:4] {
			fmt.Fprintf(out, " %g", value.Float32())
		}
		fmt.Fprintln(out, " ...")
	}
	return nil
}

func loadModel(path string) (*ds41.Model, *ds41.Config, error) {
	file, err := ds41.OpenFile(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	json, _, err := file.Metadata("config")
	if err != nil {
		return nil, nil, err
	}
	config, err := ds41.ParseConfig([]byte(json))
	if err != nil {
		return nil, nil, err
	}
	model, err := ds41.NewModel(config, nil)
	if err != nil {
		return nil, nil, err
	}
	for layer := range config.CompressRatios {
		weights, err := file.LayerWeights(layer)
		if err == nil {
			err = model.SetLayer(layer, weights) // copies; knows which tensors the layer must have
		}
		if err != nil {
			model.Close()
			return nil, nil, err
		}
	}
	return model, config, nil
}

// runStep takes the rows of x through all layers: a prompt at position 0, a decode step behind it.
func runStep(ctx *ds41.Context, seq *ds41.Sequence, pos, nLayers int, x *ds41.Tensor) error {
	if pos == 0 {
		for layer := 0; layer < nLayers; layer++ {
			if err := ctx.Prefill(layer, seq, x, 0, x); err != nil {
				return err
			}
		}
		return ctx.Synchronize()
	}
	step, err := ctx.DecodePrep(ds41.Span{Seq: seq, StartPos: int64(pos), Tokens: 1}) // once for one or many sequences
	if err != nil {
		return err
	}
	for layer := 0; layer < nLayers; layer++ {
		if err := step.Body(layer, x, x); err != nil {
			return err
		}
	}
	return ctx.Synchronize()
}
