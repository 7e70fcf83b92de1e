-- Two galaxies pass each other: gpulua examples/nbody.lua OUT.png [BODIES]
--
-- Each is a heavy body with a disc of light ones on circles around it. All attract all (Newton's law, softened near 0);
-- steps are leapfrogs. A graph has the steps between two looks at the energy, which should stay what it was: how much
-- it changes says how good the steps are. The picture has four moments, from left to right.

local gpu = require "gpulua"
local image = require "gpulua.image"

local STEP <const> = 0.01            -- units: a heavy body's mass, the constant of gravity and a disc's radius are 1
local LOOKS <const>, STEPS <const> = 17, 40 -- at the energy; steps between two
local MOMENTS <const> = { 0, 11, 14, 17 } -- after so many looks there is a picture
local SIDE <const>, WIDTH <const> = 300, 7.0 -- of each picture, in pixels and as lengths
local SOFTENING <const> = 0.2

local source <const> = [[
// body: place and mass; velocity, pull: three numbers, and one that is not used.
extern "C" __global__ void drift(int n, float step, float4 *body, float4 *velocity, const float4 *pull) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float4 v = velocity[i], x = body[i], a = pull[i];
  v.x += 0.5f * step * a.x; v.y += 0.5f * step * a.y; v.z += 0.5f * step * a.z;
  x.x += step * v.x; x.y += step * v.y; x.z += step * v.z;
  velocity[i] = v;
  body[i] = x;
}

// What all pull each with, and the second half of a step's change of velocity.
extern "C" __global__ void attract(int n, float step, float softening, const float4 *body, float4 *velocity,
                                   float4 *pull) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float4 x = body[i];
  float ax = 0, ay = 0, az = 0;
  for (int j = 0; j < n; j++) { // itself with a distance of 0: nothing comes of that
    float dx = body[j].x - x.x, dy = body[j].y - x.y, dz = body[j].z - x.z;
    float r = rsqrtf(dx * dx + dy * dy + dz * dz + softening * softening);
    float by = body[j].w * r * r * r;
    ax += by * dx; ay += by * dy; az += by * dz;
  }
  pull[i] = make_float4(ax, ay, az, 0);
  float4 v = velocity[i];
  velocity[i] = make_float4(v.x + 0.5f * step * ax, v.y + 0.5f * step * ay, v.z + 0.5f * step * az, 0);
}

// Each one's energy of motion, and half of what it has with every other.
extern "C" __global__ void energy(int n, float softening, const float4 *body, const float4 *velocity, double *each) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float4 x = body[i], v = velocity[i];
  double sum = 0;
  for (int j = 0; j < n; j++) {
    double dx = body[j].x - x.x, dy = body[j].y - x.y, dz = body[j].z - x.z;
    if (j != i) sum -= body[j].w / sqrt(dx * dx + dy * dy + dz * dz + softening * softening);
  }
  each[i] = 0.5 * x.w * ((double)v.x * v.x + (double)v.y * v.y + (double)v.z * v.z + sum);
}

// A spot of light for each: the first half of them blue, the second orange. Whole numbers, so that their order is none.
extern "C" __global__ void expose(int n, int side, float width, int moment, int moments, const float4 *body,
                                  unsigned *light) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float colours[2][3] = {{0.45f, 0.65f, 1.0f}, {1.0f, 0.6f, 0.3f}};
  float px = (body[i].x / width + 0.5f) * side, py = (0.5f - body[i].y / width) * side;
  float radius = body[i].w > 0.5f ? 3.0f : 0.8f;
  for (int y = (int)floorf(py) - 8; y <= (int)floorf(py) + 8; y++)
    for (int x = (int)floorf(px) - 8; x <= (int)floorf(px) + 8; x++) {
      if (x < 0 || y < 0 || x >= side || y >= side) continue;
      float dx = x + 0.5f - px, dy = y + 0.5f - py;
      float here = 1000 * expf(-(dx * dx + dy * dy) / (2 * radius * radius));
      for (int c = 0; c < 3; c++)
        atomicAdd(light + 3 * ((y * moments + moment) * side + x) + c, (unsigned)(here * colours[2 * i >= n][c]));
    }
}
]]

-- ---- the galaxies ----

-- Adds a heavy body and `count - 1` light ones on circles around it, in a plane that is tilted around the x axis.
local function add_galaxy(bodies, velocities, count, x, y, vx, vy, tilt)
  local cos, sin = math.cos(tilt), math.sin(tilt)
  local function add(px, py, ux, uy, mass)
    for _, value in ipairs { x + px, y + py * cos, py * sin, mass } do
      bodies[#bodies + 1] = value
    end
    for _, value in ipairs { vx + ux, vy + uy * cos, uy * sin, 0 } do
      velocities[#velocities + 1] = value
    end
  end
  add(0, 0, 0, 0, 1)
  for _ = 2, count do
    local r, angle = (0.06 + 0.94 * math.random()) ^ 0.5, 2 * math.pi * math.random()
    local speed = r / (r * r + SOFTENING * SOFTENING) ^ 0.75
    add(r * math.cos(angle), r * math.sin(angle), -speed * math.sin(angle), speed * math.cos(angle), 0.05 / count)
  end
end

-- On their way past each other, the blue one as it is seen from above, the orange one tilted.
local function two_galaxies(count)
  local bodies, velocities = {}, {}
  math.randomseed(1)
  add_galaxy(bodies, velocities, count - count // 2, -2.2, -0.5, 0.36, -0.1, 0)
  add_galaxy(bodies, velocities, count // 2, 2.2, 0.5, -0.36, 0.1, 1)
  return bodies, velocities
end

-- Lua's own clock on the wall has seconds only: without luv no times are told.
local has_luv, uv = pcall(require, "luv")
local now = has_luv and function() return uv.hrtime() / 1e9 end or function() return 0 end

local function main(path, count)
  count = math.tointeger(tonumber(count or 2048))
  if not path or not count or count < 2 or count > 65536 then
    io.stderr:write("usage: gpulua examples/nbody.lua OUT.png [BODIES, from 2 to 65536]\n")
    os.exit(2)
  end
  local dev = gpu.device()
  local k = dev:compile(source)
  local bodies, velocities = two_galaxies(count)
  local body, velocity = dev:upload("f32", bodies), dev:upload("f32", velocities)
  local pull, energy = dev:buffer("f32", 4 * count), dev:buffer("f64", count)
  local energies = dev:buffer("f64", LOOKS + 1)
  local light = dev:buffer("u32", { SIDE, #MOMENTS * SIDE, 3 }):fill(0)

  k.attract:launch(count, count, 0, SOFTENING, body, velocity, pull)
  local graph <close> = dev:capture({ label = "steps" }, function()
    for _ = 1, STEPS do
      k.drift:launch(count, count, STEP, body, velocity, pull)
      k.attract:launch(count, count, STEP, SOFTENING, body, velocity, pull)
    end
  end)
  local function look(number)
    k.energy:launch(count, count, SOFTENING, body, velocity, energy)
    gpu.reduce("sum", energy, { out = energies:slice(number + 1, number + 1) })
    for i, moment in ipairs(MOMENTS) do
      if moment == number then
        k.expose:launch(count, count, SIDE, WIDTH, i - 1, #MOMENTS, body, light)
      end
    end
  end
  look(0)
  dev:synchronize()
  local begun = now()
  for number = 1, LOOKS do
    graph:launch()
    look(number)
  end
  local found = energies:read() -- the wait
  local seconds = now() - begun
  image.save(gpu.map("u8(255 * (1 - exp(l / -600.0)))", { l = light }), path)

  local most = 0
  for _, value in ipairs(found) do
    most = math.max(most, math.abs(value / found[1] - 1))
  end
  print(("%s: %d bodies, %d steps"):format(dev.name, count, LOOKS * STEPS)
    .. (has_luv and (" in %.2f s, %.1e pairs a second"):format(seconds, LOOKS * STEPS * count ^ 2 / seconds) or ""))
  print(("energy: %.6f at first, %.6f in the end; at most %.1e of it went astray"):format(found[1], found[#found],
    most))
end

main(...)
