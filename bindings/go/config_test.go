package ds41

import (
	"fmt"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// A member that a later header adds has to be carried through: Config mirrors all but struct_size, reserved, and the
// counts that are lengths here.
func TestConfigHasEachMemberOfTheHeader(t *testing.T) {
	setters := 0
	native := reflect.TypeOf((*raw.Config)(nil)).Elem()
	for i := 0; i < native.NumMethod(); i++ {
		if name := native.Method(i).Name; len(name) > 3 && name[:3] == "Set" {
			setters++
		}
	}
	const reserved, counts = 1, 3
	if fields := reflect.TypeOf(Config{}).NumField(); fields != setters-reserved-counts {
		t.Errorf("Config has %d members, the header %d", fields, setters-reserved-counts)
	}
	config := &Config{}
	value := reflect.ValueOf(config).Elem()
	for i := 0; i < value.NumField(); i++ {
		switch field := value.Field(i); field.Kind() {
		case reflect.Int32, reflect.Int64:
			field.SetInt(int64(i + 100))
		case reflect.Float32:
			field.SetFloat(float64(i) + 0.5)
		default:
			field.Set(reflect.ValueOf([]int32{int32(i), int32(i + 1)}))
		}
	}
	there, err := config.native("", "")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.DeleteConfig(there)
	if back := configOf(there); !reflect.DeepEqual(back, config) {
		t.Errorf("went as %+v, came back as %+v", config, back)
	}
}

func TestConfigurationsAreReadAndChecked(t *testing.T) {
	flash := FlashConfig()
	if flash.NLayers != 40 || len(flash.CompressRatios) != 43 || flash.Dim != 5120 {
		t.Errorf("got %+v", flash)
	}
	if err := flash.Validate(); err != nil {
		t.Error(err)
	}
	role, err := flash.Role(24)
	if err != nil {
		t.Fatal(err)
	}
	want := LayerRole{Ratio: 1, KVSource: 20, IndexSource: 24, IsIndexSource: true, UsesCandidates: true}
	if *role != want {
		t.Errorf("layer 24 is %+v, want %+v", *role, want)
	}
	if role, err = flash.Role(20); err != nil || !role.IsKVSource || !role.IsCandidateSource || role.IsDraft {
		t.Errorf("layer 20 is %+v, %v", role, err)
	}
	if role, err = flash.Role(40); err != nil || !role.IsDraft || role.KVSource != -1 {
		t.Errorf("layer 40 is %+v, %v", role, err)
	}
	_, err = flash.Role(43)
	wantError(t, err, ErrInvalidLayer, "43")
	wantError(t, NewConfig().Validate(), ErrInvalidConfig)

	f := openFixture(t, "a_golden_stable")
	path := filepath.Join(t.TempDir(), "config.json")
	write(t, path, []byte(f.metadata(t, "config")))
	loaded, err := LoadConfig(path)
	if err != nil || !reflect.DeepEqual(loaded, f.config) {
		t.Errorf("got %+v, %v", loaded, err)
	}
	of, err := f.newEmpty(t).Config()
	if err != nil || !reflect.DeepEqual(of, f.config) {
		t.Errorf("the model has %+v, %v", of, err)
	}
	for _, json := range []string{"", "{", "[]", `{"dim": "wide"}`} {
		_, err := ParseConfig([]byte(json))
		wantError(t, err, ErrInvalidFile, "ds41_config_parse")
	}
	_, err = LoadConfig(path + ".none")
	wantError(t, err, ErrIO, ".none")
	if backends := fmt.Sprint(Backends()); backends != "[cuda cpu reference]" {
		t.Errorf("backends of this build: %s", backends)
	}
}
